"""The step channel: legal ids from what is shown, the grader's dialogue, the terminal reward."""

import asyncio

import pytest

from miner.environments import EpisodeTask, ProtocolError, Transition
from miner.environments import step as step_channel
from miner.environments.games import GameSession, clean_reply
from miner.environments.listing import parse_listing
from miner.environments.step import StepSource, read_turn
from miner.games import Turn, goofspiel
from tests.environments.playing import drawn, lowest, messy, play, play_on, then
from tests.environments.raw_server import STOPPED, http, raw_server, step_result
from tests.environments.tiny_grader import WORDING

TASK = EpisodeTask("goofspiel", task_id=0, seed=0)


def state(mine: str, others: str | None = None) -> str:
    """A state block with these hands; the other hand has as many cards unless given."""
    count = len(mine.split())
    theirs = " ".join(str(card + 1) for card in range(count)) if others is None else others
    remaining = "".join(str(card + 1) for card in range(count - 1))
    return (
        f"Current point card: 5\nRemaining Point Cards: {remaining}\n"
        f"P0 hand: {mine} \nP1 hand: {theirs} \n"
        "Win sequence: \n(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)\n"
        "Player 0: 0 points, Player 1: 0 points \n"
    )


def observed(mine: str, others: str | None = None) -> str:
    return f"You are Player 0.\n\nCurrent State:\n{state(mine, others)}\n\nWaiting"


async def test_on_a_true_server_the_cards_asked_for_are_played(correct_url: str) -> None:
    source = StepSource([correct_url])
    tasks = [EpisodeTask("goofspiel", 3 * seed, seed) for seed in range(20)]
    played = await asyncio.gather(*(play_on(source, task, messy(task.seed)) for task in tasks))
    await source.close()
    assert source.stats.applied_rate == 1.0
    for task, episode in zip(tasks, played, strict=True):
        if episode.transitions[-1].valid:
            session = GameSession(task.task_id, task.seed, stream="train")
            for transition in episode.transitions:
                if transition.action is not None:
                    session.play(transition.action)
            assert session.done
            assert episode.score == session.score()


async def test_a_server_that_plays_other_cards_is_counted_and_followed(faithful_url: str) -> None:
    source = StepSource([faithful_url])
    task = EpisodeTask("goofspiel", task_id=4, seed=3)
    played = await play_on(source, task, drawn(3))
    await source.close()
    assert source.stats.asked == 14
    assert source.stats.applied_rate is not None
    assert source.stats.applied_rate < 1.0
    # What is offered next is what is left in the hand, whatever was asked for.
    hand = set(range(16))
    for shown, transition in zip(played.shown, played.transitions, strict=True):
        assert set(parse_listing(shown[-1]["content"])) == hand
        if not transition.done:
            assert transition.action in hand
            hand.remove(transition.action)


async def test_the_policy_sees_the_graders_wording(correct_url: str) -> None:
    source = StepSource([correct_url], {"goofspiel": WORDING})
    played = await play_on(source, TASK, then(["nonsense"], lowest))
    await source.close()
    first = GameSession(0, 0, stream="train").turn()
    assert played.shown[0] == (WORDING.system_message(), WORDING.turn_message(first))
    assert played.shown[1] == (WORDING.retry_message(1),)
    assert played.transitions[0] == Transition(
        played.shown[1], 0.0, False, valid=False, recorded="nonsense"
    )
    for shown in played.shown[2:]:
        turn = goofspiel.turn_shown(shown[0]["content"], 0)
        assert turn is not None
        assert shown == (WORDING.turn_message(turn),)


async def test_only_legal_ids_reach_the_server_and_episodes_are_stopped() -> None:
    replies = iter([observed("1 2 3"), observed("1 3"), "over"])

    def answer(path: str, body: bytes) -> bytes:
        if path == "/stop":
            return STOPPED
        observation = next(replies)
        over = observation == "over"
        return http(step_result(observation=observation, reward=0.5 * over, done=over))

    async with raw_server(answer) as server:
        source = StepSource([server.url])
        environment = source.open()
        played = await play(
            environment, TASK, then(["7", "<think>2</think>", "I bid 1", "-5", "2"], lowest)
        )
        await environment.close()
        await source.close()
    assert [t.action for t in played.transitions] == [None, None, 1, None, 2]
    assert played.score == 0.5
    assert [path for path, _ in server.requests] == ["/reset", "/step", "/step", "/stop"]
    assert [body.get("action") for _, body in server.requests] == [None, "1", "2", None]


async def test_the_third_failure_scores_zero_and_stops_the_episode() -> None:
    def answer(path: str, body: bytes) -> bytes:
        return STOPPED if path == "/stop" else http(step_result(observation=observed("1 2 3")))

    async with raw_server(answer) as server:
        source = StepSource([server.url])
        environment = source.open()
        played = await play(environment, TASK, then(["?", "", "99"], lowest))
        assert played.transitions[-1] == Transition((), 0.0, True, score=0.0, valid=False)
        with pytest.raises(ProtocolError, match="call reset"):
            await environment.step("1")
        await source.close()
    assert [path for path, _ in server.requests] == ["/reset", "/stop"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"done": True, "reward": -0.01}, "reward -0.01"),
        ({"done": True, "reward": 1.5}, "reward 1.5"),
        ({"observation": "nothing"}, "no state block of goofspiel"),
        ({"observation": observed("1 2 3")}, "went from the cards"),
        ({"observation": observed("1")}, "went from the cards"),
        ({"observation": observed("4 5")}, "went from the cards"),
        ({"observation": observed("1 2", "1")}, "hands of unequal size"),
        ({"info": {"llm_player_id": None}}, "names player None"),
    ],
)
async def test_a_step_that_cannot_be_is_a_fault(second: dict[str, object], words: str) -> None:
    replies = iter([{"observation": observed("1 2 3")}, second])

    def answer(path: str, body: bytes) -> bytes:
        return STOPPED if path == "/stop" else http(step_result(**next(replies)))

    async with raw_server(answer) as server:
        source = StepSource([server.url])
        with pytest.raises(ProtocolError, match=words) as caught:
            await play_on(source, TASK, lowest)
        await source.close()
    assert caught.value.server == server.url
    assert server.requests[-1][0] == "/stop"


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"info": {"game_name": "leduc_poker"}}, "started 'leduc_poker' where 'goofspiel'"),
        ({"done": True}, "over before it began"),
        ({"observation": ""}, "no state block of goofspiel"),
        ({"info": {"seed": 9}}, "was asked for task 0, seed 0"),
    ],
)
async def test_a_start_that_cannot_be_is_a_fault(start: dict[str, object], words: str) -> None:
    reply = http(step_result(**{"observation": observed("1 2 3"), **start}))
    async with raw_server(lambda path, body: reply) as server:
        source = StepSource([server.url])
        with pytest.raises(ProtocolError, match=words):
            await play_on(source, TASK, lowest)
        await source.close()


async def test_closing_never_raises_and_never_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_channel, "_STOP_S", 0.2)
    first = [http(step_result(observation=observed("1 2 3")))]

    def answer(path: str, body: bytes) -> bytes | None:
        return first.pop() if path == "/reset" else None

    async with raw_server(answer) as server:
        source = StepSource([server.url])
        environment = source.open()
        await environment.reset(TASK)
        await environment.close()
        await environment.close()
        assert [path for path, _ in server.requests] == ["/reset", "/stop"]
        assert source.pool._loads[server.url].open_episodes == 0
        await source.close()


@pytest.mark.parametrize(("game", "first_id"), [("liars_dice", 10**8), ("leduc_poker", 2 * 10**8)])
async def test_other_games_are_read_from_their_list_of_actions(
    correct_url: str, game: str, first_id: int
) -> None:
    source = StepSource([correct_url])
    task = EpisodeTask(game, first_id, seed=0)
    played = await play_on(source, task, lowest)
    await source.close()
    session = GameSession(task.task_id, task.seed, stream="train")
    for shown, reply in zip(played.shown, played.replies, strict=True):
        turn = session.turn()
        assert turn.state_text in shown[-1]["content"]
        assert parse_listing(shown[-1]["content"]) == dict(turn.labels)
        session.play(int(clean_reply(reply)))
    assert played.score == session.score()


def test_reading_turns() -> None:
    assert read_turn("goofspiel", observed("2 3"), 0) == Turn(
        state("2 3"), 0, {1: "[P0]Bid: 2", 2: "[P0]Bid: 3"}
    )
    text = (
        "You are Player 1.\n\nCurrent State:\nA\n\nB\n\nLegal Actions:\n  0 -> x\n  1 -> y z\n\n?"
    )
    assert read_turn("leduc_poker", text, 1) == Turn("A\n\nB", 1, {0: "x", 1: "y z"})
    with pytest.raises(ValueError, match="no state"):
        read_turn("leduc_poker", "Game Over", 1)
