"""Episodes on a server that does as a test wants: each fault has its type, none is a score."""

import asyncio
import json

import pytest
from aiohttp import web

from miner.config.errors import ConfigurationError
from miner.environments import EpisodeTask, InfrastructureError, ProtocolError
from miner.environments.openenv.environment import OpenEnvSource
from miner.environments.openenv.server import OpenEnvServer
from miner.environments.openenv.wire import REPLY_LIMIT
from tests.environments.openenv.server_double import (
    CLOSE,
    HANG,
    Double,
    error,
    observation,
    serving,
    source_of,
)
from tests.environments.playing import until
from tests.environments.raw_server import http, raw_server

TASK = EpisodeTask("openenv", 7, 7)


async def play(source: OpenEnvSource, *replies: str) -> tuple[float | None, list[str]]:
    """Score and what was shown, of an episode with these replies, the last one for the rest."""
    environment = source.open()
    try:
        first = await environment.reset(TASK)
        assert first.too_long_forfeits
        shown = [message["content"] for message in first.messages]
        for number in range(50):
            step = await environment.step(replies[min(number, len(replies) - 1)])
            if step.done:
                return step.score, shown
            shown += [message["content"] for message in step.messages]
        raise AssertionError("the episode has no end")
    finally:
        await environment.close()
        assert source.places[environment.server].taken == 0
        assert source.pool._loads[environment.server].open_episodes == 0


def game(*rewards: object, done: bool = True):
    """Answers of a game with these rewards, one a step."""

    def answer(kind: str, data: dict, turn: int) -> dict:
        if kind == "reset":
            return observation("go")
        return observation(
            f"turn {turn}", reward=rewards[turn - 1], done=done and turn == len(rewards)
        )

    return answer


async def test_an_episode_is_one_session_with_the_seed_the_replies_and_the_sum_of_rewards() -> None:
    async with serving(Double(game(None, 0.25, True))) as server:
        async with source_of(server, system="Be brief.", return_range=(0, 2)) as source:
            assert await play(source, "a", "b") == (0.625, ["Be brief.", "go", "turn 1", "turn 2"])
        assert server.asked == [
            ("reset", {"seed": 7}),
            *(("step", {"message": reply}) for reply in "abb"),
        ]
        assert server.connections == 1


@pytest.mark.parametrize(
    ("rewards", "unfinished", "score"),
    [((0.5, 0.25), "sum", 0.75), ((0.5, 0.25), "zero", 0.0), ((None, None), "zero", 0.0)],
)
async def test_an_episode_without_end_is_ended_after_max_turns(
    rewards: tuple[float | None, ...], unfinished: str, score: float
) -> None:
    double = Double(game(*rewards, done=False))
    settings = {"max_turns": 2, "unfinished": unfinished}
    async with serving(double), source_of(double, **settings) as source:
        assert (await play(source, "a"))[0] == score


@pytest.mark.parametrize(
    ("reply", "reward", "unfinished", "score"),
    [("rude", 0.0, "sum", 0.0), ("a", 0.5, "zero", 0.0), ("a", 0.0, "sum", 0.5)],
)
async def test_the_lowest_sum_scores_0(
    reply: str, reward: float, unfinished: str, score: float
) -> None:
    def answer(kind: str, data: dict[str, str], turn: int) -> dict[str, object]:
        if kind == "step" and data["message"] == "rude":
            return error("VALIDATION_ERROR")
        return observation("go", reward=reward if turn else None)

    settings = {"max_turns": 2, "unfinished": unfinished, "return_range": (-1.0, 1.0)}
    double = Double(answer)
    async with serving(double), source_of(double, **settings) as source:
        assert (await play(source, reply))[0] == score


async def failing(answer, **settings: object) -> Exception:
    """What an episode of three turns on such a server raises."""
    async with serving(Double(answer)) as server:
        async with source_of(server, **settings) as source:
            with pytest.raises((InfrastructureError, ProtocolError, ConfigurationError)) as caught:
                await play(source, "a")
        assert server.url in str(caught.value)
        assert server.connections == 1
    return caught.value


@pytest.mark.parametrize("at", [0, 2], ids=["at reset", "in mid-episode"])
@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        pytest.param(CLOSE, InfrastructureError, "closed the session", id="killed"),
        pytest.param(HANG, InfrastructureError, "did not answer", id="hung"),
        pytest.param("<html>", ProtocolError, "malformed", id="garbage"),
        pytest.param("[]", ProtocolError, "`object`", id="list"),
        pytest.param(b"\x00", ProtocolError, "in bytes", id="bytes"),
        pytest.param("x" * (REPLY_LIMIT + 1), ProtocolError, "more than 4,194,304", id="big"),
        pytest.param({"type": "state", "data": {}}, ProtocolError, "'state'", id="other reply"),
        pytest.param(observation(done="no"), ProtocolError, "`bool`", id="text as flag"),
        pytest.param(observation(reward="1.0"), ProtocolError, "reward", id="text as reward"),
        pytest.param(
            json.dumps(observation(reward=float("nan"))), ProtocolError, "malformed", id="NaN"
        ),
        pytest.param(
            '{"type":"observation","data":{"observation":{},"done":false,"reward":1e999}}',
            ProtocolError,
            "",
            id="infinite",
        ),
        pytest.param(
            '{"type":"observation","data":{"observation":{"text":' + "[" * 5000,
            ProtocolError,
            "",
            id="nested",
        ),
        pytest.param(
            {"type": "observation", "data": {"observation": ["x"], "done": False}},
            ProtocolError,
            "object",
            id="list as observation",
        ),
        pytest.param(error("EXECUTION_ERROR", "boom"), ProtocolError, "boom", id="raises"),
        pytest.param(error("SESSION_ERROR", "gone"), InfrastructureError, "gone", id="lost"),
        pytest.param(error("FACTORY_ERROR", "none"), InfrastructureError, "none", id="none made"),
        pytest.param({"type": "error", "data": {}}, ProtocolError, "message", id="silent error"),
    ],
)
async def test_a_fault_is_typed_bounded_and_no_score(
    at: int, reply: object, kind: type[Exception], says: str
) -> None:
    def answer(asked: str, data: dict, turn: int) -> object:
        return reply if turn == at else observation(reward=0.1, done=turn == 3)

    raised = await failing(answer, reply_seconds=0.3 if reply == HANG else 5.0)
    assert type(raised) is kind
    assert says in str(raised)
    assert len(str(raised)) < 500


@pytest.mark.parametrize(
    ("answer", "settings", "kind", "says"),
    [
        (lambda *_: observation(done=True, reward=1.0), {}, ProtocolError, "before it began"),
        (game(10**400), {}, ProtocolError, "the reward inf"),
        (game(1.7e308, 1.7e308), {}, ProtocolError, "no number"),
        (game(None, None), {}, ConfigurationError, "gives no reward"),
        (game(None, None, done=False), {"max_turns": 2}, ConfigurationError, "unfinished"),
        (game(0.7, 0.7), {}, ConfigurationError, "return_range=[0, 1]"),
        (game(-0.1), {}, ConfigurationError, "return_range"),
        (game(0.5), {"show": "board"}, ConfigurationError, "has text"),
    ],
    ids=[
        *("done at reset", "huge", "huge sum", "no reward", "no reward yet"),
        *("too much", "too little", "no such field"),
    ],
)
async def test_what_cannot_be_scored_is_reported(
    answer, settings: dict, kind: type[Exception], says: str
) -> None:
    async with serving(Double(answer)) as server, source_of(server, **settings) as source:
        with pytest.raises(kind, match=says.replace("[", r"\[")):
            await play(source, "a")
        if kind is ConfigurationError:  # no episode is lost to it one by one
            with pytest.raises(ConfigurationError, match=says.replace("[", r"\[")):
                source.open()


async def test_where_rewards_were_seen_an_episode_without_any_is_a_distinct_error() -> None:
    """A reward that is not a number arrives as null: the episode is lost, the run goes on."""
    rewards = iter([0.5, None, 0.5])

    def answer(kind: str, data: dict, turn: int) -> dict:
        return observation() if kind == "reset" else observation(reward=next(rewards), done=True)

    async with serving(Double(answer)) as server, source_of(server) as source:
        assert (await play(source, "a"))[0] == 0.5
        with pytest.raises(ProtocolError, match="without any reward"):
            await play(source, "a")
        assert (await play(source, "a"))[0] == 0.5


async def test_an_episode_that_max_turns_ends_without_any_reward_is_a_setting_to_change() -> None:
    """Lost, it would leave its group: not coming to an end would cost the policy nothing."""

    def answer(kind: str, data: dict, turn: int) -> dict:
        if kind == "step" and data["message"] == "rude":
            return error("VALIDATION_ERROR")
        return observation(reward=1.0 if turn == 2 else None, done=turn == 2)

    async with serving(Double(answer)) as server, source_of(server, max_turns=3) as source:
        assert (await play(source, "a"))[0] == 1.0
        with pytest.raises(ConfigurationError, match='unfinished="zero"'):
            await play(source, "a", "rude")


@pytest.mark.parametrize(
    ("action", "reply", "reward"),
    [
        ("", "\ud83d", 0.5),
        ("json", '{"message": "\\ud83d"}', 0.0),
        ("json", '{"message": NaN}', 0.0),
        ("json", "{" + '"a":{' * 5000, 0.0),
    ],
    ids=["surrogate", "escaped surrogate", "NaN", "nested"],
)
async def test_a_reply_that_cannot_be_sent_is_the_policys_fault(
    action: str, reply: str, reward: float
) -> None:
    settings = {"action": action, "max_turns": 1}
    async with serving(Double(game(0.5))) as server, source_of(server, **settings) as source:
        assert (await play(source, reply))[0] == reward
    assert [data for kind, data in server.asked if kind == "step"] == [{"message": "?"}] * (
        reward > 0
    )


async def test_a_message_that_nobody_asked_for_is_no_answer() -> None:
    async def chatty(socket: web.WebSocketResponse) -> None:
        await socket.send_json(observation("hello"))

    async with serving(Double(game(0.5), on_connect=chatty)) as server:
        client = OpenEnvServer(server.url)
        session = await client.connect()
        await until(lambda: not session._inbox.empty())
        with pytest.raises(ProtocolError, match="without having been asked"):
            await session.reset({"seed": 7})
        await session.close()
        await client.close()


async def test_a_restarted_server_is_not_stepped_on() -> None:
    """What a server has behind a new socket was never reset: its rewards are of another episode."""
    first = Double(game(0.1, 0.1, 0.1))
    async with serving(first):
        source = source_of(first)
        opened = await source.__aenter__()
        environment = opened.open()
        await environment.reset(TASK)
        await environment.step("a")
    port = int(first.url.rpartition(":")[2])
    async with serving(Double(game(1.0)), port) as second:
        with pytest.raises(InfrastructureError, match="in mid-episode") as caught:
            await environment.step("a")
        assert caught.value.server == first.url
        await environment.close()
        assert second.connections == 0
        assert await opened.health_error(first.url) == ""
        assert (await play(opened, "a"))[0] == 1.0
        await source.__aexit__(None, None, None)


async def test_pings_are_answered_while_the_policy_thinks() -> None:
    """A server closes a session that is silent for longer, and a reply may take that long."""
    async with serving(Double(game(0.5))) as server, source_of(server) as source:
        environment = source.open()
        await environment.reset(TASK)
        [socket] = server.sockets
        await socket.ping()
        async with asyncio.timeout(30):
            await server.pong.wait()
        assert (await environment.step("a")).score == 0.5
        await environment.close()


@pytest.mark.parametrize("tells", [True, False], ids=["says so", "does not say how many"])
@pytest.mark.parametrize("capacity", [1, 3])
async def test_more_episodes_than_places_wait_and_all_are_played(
    capacity: int, tells: bool, caplog: pytest.LogCaptureFixture
) -> None:
    double = Double(game(0.1, 0.2), capacity=capacity, tells_capacity=tells)
    async with serving(double) as server, source_of(server, sessions=8) as source:
        scores = await asyncio.gather(*(play_alone(source) for _ in range(12)))
        assert scores == [pytest.approx(0.3)] * 12
        assert 1 <= source.capacity <= (capacity if tells else 7)
    assert server.most_sessions == capacity
    if tells:
        assert len(caplog.records) == 1


async def test_a_place_is_waited_for_first_and_given_back_when_cancelled() -> None:
    async with serving(Double(game(0.5))) as server, source_of(server, sessions=1) as source:
        places = source.places[server.url]
        first, second, third = source.open(), source.open(), source.open()
        await first.ready(TASK)
        waiting = [asyncio.create_task(each.ready(TASK)) for each in (second, third)]
        await asyncio.sleep(0)
        assert (places.taken, len(server.asked)) == (1, 1)
        await first.close()
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        await second.close()
        await waiting[1]
        assert (await third.reset(TASK)).messages[-1]["content"] == "go"
        assert (await third.step("a")).score == 0.5
        assert [kind for kind, _ in server.asked] == ["reset", "reset", "step"]
        assert places.taken == 0
        await third.close()


async def play_alone(source: OpenEnvSource) -> float | None:
    environment = source.open()
    await environment.reset(TASK)
    await environment.step("a")
    score = (await environment.step("a")).score
    await environment.close()
    return score


async def test_a_server_that_others_fill_is_not_waited_for_without_end() -> None:
    double = Double(game(0.5), capacity=0)
    async with serving(double), source_of(double, reply_seconds=1.0) as source:
        with pytest.raises(InfrastructureError, match="takes no further session"):
            await play(source, "a")


async def test_an_action_that_the_server_refuses_takes_a_turn() -> None:
    def answer(kind: str, data: dict, turn: int) -> dict:
        if kind == "step" and data["message"] == "rude":
            return error("VALIDATION_ERROR", errors=[{"loc": ["message"], "msg": "too rude"}])
        return observation("go", reward=0.5 if turn else None, done=turn > 1)

    async with serving(Double(answer)) as server, source_of(server, max_turns=3) as source:
        assert await play(source, "rude", "kind") == (0.5, ["go", "'message: too rude'"])
        assert await play(source, "rude") == (0.0, ["go", *["'message: too rude'"] * 2])


async def test_cancelled_in_mid_step_it_gives_its_place_back() -> None:
    async with (
        serving(Double(lambda kind, *_: HANG if kind == "step" else observation())) as server,
        source_of(server) as source,
    ):
        environment = source.open()
        await environment.reset(TASK)
        step = asyncio.create_task(environment.step("a"))
        await until(lambda: len(server.asked) == 2)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        await environment.close()
        await until(lambda: not server.sockets)
        assert source.places[server.url].taken == 0


@pytest.mark.parametrize(
    ("reply", "kind", "says"),
    [
        (http({}, 404), ProtocolError, "HTTP 404 where 101 was expected"),
        (http({}, 503), InfrastructureError, "failed with HTTP 503"),
        (
            b"HTTP/1.1 101 X\r\n\r\n",
            ProtocolError,
            "no WebSocket handshake.*base URL of an OpenEnv",
        ),
    ],
)
async def test_what_shakes_no_hands_is_named(
    reply: bytes, kind: type[Exception], says: str
) -> None:
    async with raw_server(lambda path, body: reply) as there:
        server = OpenEnvServer(there.url)
        with pytest.raises(kind, match=says):
            await server.connect()
        await server.close()
