"""The graded channel: the grader's messages, verdicts and scores, and nothing else."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from miner.environments import (
    EnvironmentFault,
    EpisodeTask,
    InfrastructureError,
    ProtocolError,
    Transition,
    graded,
    graded_calls,
    graded_endpoint,
)
from miner.environments.affinetes import AffinetesClient, EvaluateReply
from miner.environments.builtin import BuiltinSource
from miner.environments.graded import GRADED_EPISODES_PER_SERVER, GradedSource
from mock_env_server.running import running_server
from tests.environments.playing import Played, lowest, messy, play_on, then, until
from tests.environments.raw_server import raw_server
from tests.environments.tiny_grader import WORDING, Lies, tiny_grader

TASK = EpisodeTask("goofspiel", task_id=0, seed=0)


async def fault_of(url: str, **limits: float) -> EnvironmentFault:
    """What playing an episode on `url` raises."""
    source = GradedSource([url], **limits)
    try:
        with pytest.raises(EnvironmentFault) as caught:
            await play_on(source, TASK, lowest)
    finally:
        await source.close()
    return caught.value


async def test_graded_and_builtin_episodes_are_identical(faithful_url: str) -> None:
    graded, builtin = GradedSource([faithful_url]), BuiltinSource()
    tasks = [EpisodeTask("goofspiel", 7 * seed, seed) for seed in range(40)]

    async def both(task: EpisodeTask) -> tuple[Played, Played]:
        return (
            await play_on(graded, task, messy(task.seed)),
            await play_on(builtin, task, messy(task.seed)),
        )

    pairs = await asyncio.gather(*map(both, tasks))
    await graded.close()
    for theirs, ours in pairs:
        assert theirs == ours
    ends = [theirs.transitions[-1] for theirs, _ in pairs]
    assert {end.score for end in ends} >= {0.0, 1.0}
    assert any(not end.valid for end in ends), "no episode met three failures: weak test"
    assert graded.stats.disagreements == 0
    assert graded.stats.applied_rate == 1.0


async def test_the_servers_own_wording_reaches_the_policy() -> None:
    async with tiny_grader() as grader:
        source = GradedSource([grader.url])
        theirs = await play_on(source, TASK, messy(3))
        await source.close()
    ours = await play_on(BuiltinSource({"goofspiel": WORDING}), TASK, messy(3))
    assert theirs == ours
    assert theirs.shown[0][0]["content"] == WORDING.system_text


async def test_three_failures_score_zero_and_are_no_fault(faithful_url: str) -> None:
    source = GradedSource([faithful_url])
    played = await play_on(source, TASK, then(["1", "?", "", "99"], lowest))
    await source.close()
    assert [t.valid for t in played.transitions] == [True, False, False, False]
    assert played.transitions[-1] == Transition((), 0.0, True, score=0.0, action=None, valid=False)


@pytest.mark.parametrize(
    ("lies", "kind", "words"),
    [
        (Lies(rewrite_history=True), ProtocolError, "changed or dropped earlier messages"),
        (Lies(drop_history=True), ProtocolError, "changed or dropped earlier messages"),
        (Lies(rewrite_reply=True), ProtocolError, "recorded the reply '0' as assistant"),
        (Lies(no_chat=True), ProtocolError, "without asking for a single reply"),
        (Lies(result={"error": "boom\nTrace"}), InfrastructureError, "broke the episode off"),
        (Lies(result={"error": "\n"}), InfrastructureError, "broke the episode off"),
        (Lies(result={"score": 2.0}), ProtocolError, "score"),
        (Lies(result={"score": "1"}), ProtocolError, "score"),
        (Lies(result={"extra": {"task_id": 0, "seed": 9}}), ProtocolError, "seed 9"),
        (Lies(result={"extra": {"game_name": "go"}}), ProtocolError, "reports go"),
    ],
)
async def test_a_lying_server_is_a_fault_and_no_score(
    lies: Lies, kind: type[EnvironmentFault], words: str
) -> None:
    async with tiny_grader(lies) as grader:
        fault = await fault_of(grader.url)
    assert type(fault) is kind
    assert words in str(fault)
    assert fault.server == grader.url


async def test_a_parser_unlike_ours_is_reported_once_and_its_verdicts_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with tiny_grader(Lies(strip="x")) as grader:
        source = GradedSource([grader.url])
        played = await play_on(source, TASK, lambda legal: f"x{legal[0]}x")  # we read no number
        await source.close()
    assert all(t.valid for t in played.transitions)
    assert source.stats.disagreements > 1
    assert caplog.text.count("judges replies otherwise than assumed") == 1


async def test_a_grader_that_plays_other_actions_is_noticed() -> None:
    async with tiny_grader(Lies(play_lowest=True)) as grader:
        source = GradedSource([grader.url])
        await play_on(source, TASK, lambda legal: str(legal[-1]))
        await source.close()
    assert source.stats.applied_rate is not None
    assert source.stats.applied_rate < 0.5


async def test_a_server_that_never_asks_may_be_unable_to_reach_us() -> None:
    async with raw_server(lambda path, body: None) as server:
        fault = await fault_of(server.url, turn_timeout_s=0.2)
    assert type(fault) is InfrastructureError
    assert "must be able to reach this machine at http://127.0.0.1:" in str(fault)


async def test_200_episodes_at_once_never_exceed_what_a_server_bears() -> None:
    # This server locks up for good at 100 concurrent calls.
    with running_server("faithful", "--quirks", "deadlock") as server:
        source = GradedSource([server.base_url])
        tasks = [EpisodeTask("goofspiel", 5 * seed, seed) for seed in range(200)]
        played = await asyncio.gather(*(play_on(source, task, lowest) for task in tasks))
        await source.close()
    assert source.capacity == GRADED_EPISODES_PER_SERVER == 48
    assert [one.transitions[-1].done for one in played] == [True] * 200
    again = await asyncio.gather(*(play_on(BuiltinSource(), task, lowest) for task in tasks[::20]))
    assert played[::20] == again


async def test_processes_of_a_run_share_the_places_of_a_server(
    faithful_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the episodes of four processes come to one server, 192 calls would lock it up."""
    evaluate, under_way, most = AffinetesClient.evaluate, 0, 0

    async def counted(client: AffinetesClient, *given: Any, **named: Any) -> EvaluateReply:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await evaluate(client, *given, **named)
        finally:
            under_way -= 1

    monkeypatch.setattr(AffinetesClient, "evaluate", counted)
    monkeypatch.setattr(graded_calls, "world_size", lambda: 4)
    sources = [GradedSource([faithful_url]) for _ in range(4)]
    tasks = [EpisodeTask("goofspiel", 5 * seed, seed) for seed in range(48)]
    played = await asyncio.gather(
        *(play_on(source, task, lowest) for source in sources for task in tasks)
    )
    for source in sources:
        await source.close()
    assert [one.transitions[-1].done for one in played] == [True] * 192
    assert most == GRADED_EPISODES_PER_SERVER


async def test_episodes_are_spread_over_servers(faithful_url: str, correct_url: str) -> None:
    source = GradedSource([faithful_url, correct_url])
    opened = [source.open() for _ in range(6)]
    assert sorted(env.server for env in opened) == sorted([faithful_url, correct_url] * 3)
    assert source.open(avoid=[faithful_url]).server == correct_url
    for environment in opened:
        await environment.close()
        await environment.close()
    assert source.pool._loads[faithful_url].open_episodes == 0
    await source.close()


async def test_an_abandoned_episode_ends_on_the_server_at_once(faithful_url: str) -> None:
    source = GradedSource([faithful_url])
    abandoned = [source.open() for _ in range(GRADED_EPISODES_PER_SERVER)]
    await asyncio.gather(*(environment.reset(TASK) for environment in abandoned))
    for environment in abandoned:
        await environment.close()
    async with asyncio.timeout(30):  # what is not refused would let go after a minute
        played = await play_on(source, TASK, lowest)
    assert played.score is not None
    await source.close()


async def test_zombies_of_a_timed_out_episode_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def refuse(status: int, message: str) -> web.Response:
        refused.append(message)
        return web.Response(status=status)

    monkeypatch.setattr(graded_endpoint, "_error", refuse)
    # After its time-out this server plays on unseen.
    with running_server("faithful", "--quirks", "stragglers") as server:
        source = GradedSource([server.base_url], episode_timeout_s=3)
        environment = source.open()
        await environment.reset(TASK)
        assert environment._call is not None
        await asyncio.wait([environment._call])  # the policy thinks for longer than the server
        with pytest.raises(InfrastructureError, match="broke the episode off"):
            await environment.step("0")
        assert refused == []
        await environment.close()
        await until(lambda: bool(refused))
        task = EpisodeTask("goofspiel", task_id=1, seed=1)
        assert await play_on(source, task, lowest) == await play_on(BuiltinSource(), task, lowest)
        await source.close()


async def test_a_place_is_waited_for_before_the_episode_begins(
    faithful_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its time does not run meanwhile."""
    monkeypatch.setattr(graded_calls, "GRADED_EPISODES_PER_SERVER", 1)
    source = GradedSource([faithful_url])
    first, second, third = (source.open() for _ in range(3))
    await source.ready(first, TASK)
    await first.reset(TASK)  # in the place that it has
    waiting = asyncio.create_task(source.ready(second, TASK))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await first.close()
    await waiting
    await second.close()  # without an episode
    await source.ready(third, TASK)
    assert (await third.reset(TASK)).messages
    await third.close()
    await source.close()


async def test_closing_the_source_frees_those_who_wait(faithful_url: str) -> None:
    async with raw_server(lambda path, body: None) as server:
        source = GradedSource([server.url])
        waiting = asyncio.create_task(source.open().reset(TASK))
        await server.arrivals.get()
        await source.close()
        with pytest.raises(InfrastructureError, match="was aborted"):
            await waiting


def test_a_source_survives_its_event_loop(faithful_url: str) -> None:
    source = GradedSource([faithful_url])

    async def once() -> Played:
        return await play_on(source, TASK, lowest)

    first = asyncio.run(once())
    assert asyncio.run(once()) == first


async def test_a_server_that_does_not_let_go_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graded, "_LETTING_GO_S", 0.05)
    monkeypatch.setattr(graded_calls, "GRADED_EPISODES_PER_SERVER", 1)
    async with raw_server(lambda path, body: None) as server:
        source = GradedSource([server.url], turn_timeout_s=0.1)
        for _ in range(2):
            environment = source.open()
            async with asyncio.timeout(60):  # without a place it would wait for half an hour
                with pytest.raises(InfrastructureError, match="sent nothing"):
                    await environment.reset(TASK)
            await environment.close()
        await source.close()
