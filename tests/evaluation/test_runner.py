"""The grader's rules: what is tried again, what is excluded, what scores 0."""

import asyncio
from dataclasses import replace

import pytest

from miner.cli.evaluation_session import rules_of
from miner.config.errors import ConfigurationError
from miner.config.evaluation_run import EvaluationRun
from miner.config.settings import Channel, EnvironmentSettings
from miner.duel.outcome import Cause
from miner.environments import (
    Environment,
    EpisodeTask,
    InfrastructureError,
    Observation,
    ProtocolError,
    Transition,
)
from miner.environments.builtin import BuiltinSource
from miner.environments.playing import TextConversation
from miner.evaluation.grader import episode_list
from miner.evaluation.policies import BaselinePolicy, PolicyError
from miner.evaluation.results import EpisodeRecord
from miner.evaluation.runner import GRADER_TIMEOUT_S, Rules, evaluate
from miner.rollout.scheduler import RetryParams
from tests.evaluation.scripted import (
    Event,
    ScriptedEnvironment,
    ScriptedPolicy,
    ScriptedSource,
    gave_up,
    retry,
    task,
    won,
)
from tests.virtual_time import run_paused

AT_ONCE = Rules(retry=RetryParams(pause_seconds=0, episode_seconds=None))
DOWN = InfrastructureError("HTTP 500")


async def only(
    events: list[list[Event]], policy: ScriptedPolicy | None = None, rules: Rules = AT_ONCE
) -> tuple[EpisodeRecord, ScriptedSource]:
    """The record of one episode with one list of events per try."""
    source = ScriptedSource({7: events})
    result = await evaluate(policy or ScriptedPolicy(), source, [task(7)], rules)
    return result.episodes[0], source


async def test_an_episode_that_infrastructure_lost_is_played_again_elsewhere() -> None:
    down = [[InfrastructureError("HTTP 500", server=f"server-{number}")] for number in (1, 2)]
    record, source = await only([*down, [won()]])
    assert (record.score, record.failure, record.tries) == (1.0, None, 3)
    assert source.avoided == [set(), {"server-1"}, {"server-1", "server-2"}]


def test_each_retry_comes_after_a_pause() -> None:
    rules = Rules(retry=RetryParams(pause_seconds=7, episode_seconds=None))
    (record, _), paused = run_paused(only([[DOWN], [DOWN], [won()]], rules=rules))
    assert (record.tries, paused) == (3, 7.0 + 14.0)


async def test_three_infrastructure_failures_exclude_an_episode() -> None:
    record, source = await only([[DOWN]])
    assert (record.score, record.failure, record.tries) == (None, "infrastructure", 3)
    assert source.opened == source.closed == 3


@pytest.mark.parametrize(
    ("event", "failure"),
    [(ProtocolError("no state block"), "protocol"), (PolicyError("HTTP 400"), "policy")],
)
async def test_every_other_failure_scores_0_at_once(event: Exception, failure: str) -> None:
    record, _ = await only([[event], [won()]])
    assert (record.score, record.failure, record.tries) == (0.0, failure, 1)
    assert record.message == str(event)


@pytest.mark.parametrize(
    ("channel", "tries"),
    [("step", 1), ("openenv", 2), ("recorded", 2)],
)
async def test_only_the_tournaments_games_score_a_violation_of_the_protocol_at_once(
    channel: str, tries: int
) -> None:
    source = ScriptedSource({7: [[ProtocolError("garbage")]]}, name=channel)
    [record] = (await evaluate(ScriptedPolicy(), source, [task(7)], AT_ONCE)).episodes
    assert (record.score, record.failure, record.tries) == (0.0, "protocol", tries)
    source = ScriptedSource({7: [[ProtocolError("garbage")], [won()]]}, name="openenv")
    [record] = (await evaluate(ScriptedPolicy(), source, [task(7)], AT_ONCE)).episodes
    assert (record.score, record.tries) == (1.0, 2)


async def test_a_policy_that_cannot_answer_scores_0_and_everything_is_closed() -> None:
    policy = ScriptedPolicy(["0", PolicyError("context is full")])
    record, source = await only([[retry(), won()]], policy)
    assert (record.score, record.failure) == (0.0, "policy")
    assert policy.closed == policy.opened == source.closed == source.opened == 1


async def test_a_time_out_scores_0_and_keeps_the_replies() -> None:
    record, source = await only([[retry(), None]], rules=Rules(timeout_s=0.05))
    assert (record.score, record.failure, record.tries) == (0.0, "timeout", 1)
    assert len(record.replies) == 1
    assert source.closed == 1


def test_what_is_not_over_in_time_is_left_out() -> None:
    """The last evaluation before a kill: the games that were played decide."""
    source = ScriptedSource({7: [[retry(), None]], 8: [[won()]]})
    tasks = [task(7), task(8), task(9)]
    played = evaluate(ScriptedPolicy(), source, tasks, AT_ONCE, seconds=30.0)
    result, seconds = run_paused(played)
    assert [record.score for record in result.episodes] == [None, 1.0, 1.0]
    assert (result.failures(), seconds) == ({"no_time": 1}, pytest.approx(30.0))
    assert source.closed == source.opened == 3
    nothing, _ = run_paused(evaluate(ScriptedPolicy(), source, tasks, AT_ONCE, seconds=0.0))
    assert nothing.failures() == {"no_time": 3}


async def test_another_time_out_is_not_taken_for_the_end_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def close(self: object) -> None:
        raise TimeoutError("the socket's")

    monkeypatch.setattr(ScriptedEnvironment, "close", close)
    with pytest.raises(TimeoutError, match="the socket's"):
        await evaluate(ScriptedPolicy(), ScriptedSource(), [task(7)], AT_ONCE)


@pytest.mark.parametrize("channel", ["duel", "own", "openenv"])
async def test_what_no_grader_times_does_not_count_where_this_machine_is_too_slow(
    channel: str,
) -> None:
    source = ScriptedSource({7: [[retry(), None], [won()]]}, name=channel)
    rules = Rules(timeout_s=0.05)
    result = await evaluate(ScriptedPolicy(), source, [task(7)], rules)
    [record] = result.episodes
    assert (record.score, record.failure, record.tries) == (None, "too_slow", 1)
    assert result.unplayed == result.episodes


def test_the_time_begins_when_the_environment_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready(self: ScriptedSource, environment: Environment, task: EpisodeTask) -> None:
        await asyncio.sleep(500)

    monkeypatch.setattr(ScriptedSource, "ready", ready)
    (record, _), paused = run_paused(only([[won()]]))
    assert (record.score, record.failure, paused) == (1.0, None, 500)


async def test_a_score_outside_the_protocol_is_a_failure_not_an_exclusion() -> None:
    record, _ = await only([[Transition((), 0.0, done=True, score=None)]])
    assert (record.score, record.failure) == (0.0, "protocol")


async def test_three_invalid_replies_score_0_and_are_distinguished() -> None:
    policy = ScriptedPolicy(["no idea", "<think>5</think> hm", "card 99"])
    record, _ = await only([[retry(), retry(), gave_up()]], policy)
    assert (record.score, record.failure) == (0.0, "invalid_replies")
    assert (record.turns, record.parse_failures, record.illegal_replies) == (0, 2, 1)


@pytest.mark.parametrize(
    ("text", "cause", "counts"),
    [
        ("I bid card 3.", Cause.NO_CALL, (1, 0)),
        ("note 3", Cause.NO_MOVE, (1, 0)),
        ("action three", Cause.BAD_ARGUMENTS, (1, 0)),
        ("action three", Cause.ILLEGAL, (0, 1)),
    ],
)
async def test_a_fault_decides_whether_a_reply_was_read(
    text: str, cause: Cause, counts: tuple[int, int]
) -> None:
    ended = replace(gave_up(), fault=cause.value)
    record, _ = await only([[ended]], ScriptedPolicy([text]))
    assert (record.parse_failures, record.illegal_replies) == counts


async def test_an_episode_that_keeps_a_score_was_not_ended_by_its_last_reply() -> None:
    policy = ScriptedPolicy(["no idea"])
    record, _ = await only([[Transition((), 0.0, done=True, score=0.7, valid=False)]], policy)
    assert (record.score, record.failure, record.message) == (0.7, None, "")
    assert record.parse_failures == 1


async def test_the_chat_grows_by_what_the_environment_recorded() -> None:
    policy = ScriptedPolicy(["<think>hm</think>", "0"])
    await only([[retry(recorded=""), won()]], policy)
    first, second = policy.shown
    assert second[: len(first)] == first
    assert second[len(first) :] == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "again"},
    ]


async def test_excluded_episodes_leave_the_mean_and_zeros_stay() -> None:
    source = ScriptedSource({1: [[DOWN]], 2: [[ProtocolError("bad")]]})
    result = await evaluate(ScriptedPolicy(), source, [task(n) for n in range(4)], AT_ONCE)
    assert result.score is not None
    assert (result.score.mean, result.score.n) == (pytest.approx(2 / 3), 3)
    assert result.failures() == {"infrastructure": 1, "protocol": 1}


async def test_records_keep_the_order_of_the_list_and_each_is_announced_once() -> None:
    announced: list[EpisodeRecord] = []
    source = ScriptedSource({0: [[DOWN], [DOWN], [won()]]})
    tasks = [task(n) for n in range(10)]
    result = await evaluate(ScriptedPolicy(), source, tasks, AT_ONCE, announced.append)
    assert [record.task_id for record in result.episodes] == list(range(10))
    assert sorted(r.task_id for r in announced) == list(range(10))
    assert [record.deck_size for record in result.episodes[:5]] == [8, 10, 12, 14, 16]
    assert [record.seat for record in result.episodes[:4]] == [0, 1, 0, 1]


class Gathering(ScriptedPolicy):
    """Answers only when `size` episodes are waiting: fails to end unless so many play at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.barrier = asyncio.Barrier(size)

    def conversation(self, task: EpisodeTask) -> TextConversation:
        async def reply(chat: Observation) -> str:
            await self.barrier.wait()
            return "0"

        return TextConversation(reply)


@pytest.mark.parametrize(("asked", "capacity", "played"), [(4, 100, 4), (100, 3, 3)])
async def test_as_many_play_at_once_as_asked_and_as_the_source_allows(
    asked: int, capacity: int, played: int
) -> None:
    source = ScriptedSource(capacity=capacity)
    rules = Rules(concurrency=asked)
    await evaluate(Gathering(played), source, [task(n) for n in range(3 * played)], rules)
    assert source.most_open == played


async def test_settings_that_cannot_work_end_the_evaluation() -> None:
    source = ScriptedSource({1: [[ConfigurationError("unknown game")]]})
    with pytest.raises(ConfigurationError, match="unknown game"):
        await evaluate(ScriptedPolicy(), source, [task(n) for n in range(4)])
    assert source.opened == source.closed
    with pytest.raises(ConfigurationError, match="empty"):
        await evaluate(ScriptedPolicy(), source, [])


async def test_bid_the_prize_has_its_known_score_on_the_graders_own_list() -> None:
    result = await evaluate(BaselinePolicy("match"), BuiltinSource(), episode_list(250))
    assert result.score is not None
    assert result.score.mean == pytest.approx(0.946)
    assert (result.parse_failures, result.illegal_replies) == (0, 0)
    assert sum(part.n for part in result.by_deck_size.values()) == 250


@pytest.mark.parametrize(
    ("llm_url", "servers", "channel", "limit"),
    [
        (None, (), "auto", None),
        (None, ("http://environment",), "builtin", None),  # which only tells its prompts
        (None, ("http://environment",), "graded", GRADER_TIMEOUT_S),
        (None, ("http://environment",), "openenv", None),
        ("http://model", (), "builtin", GRADER_TIMEOUT_S),
        ("http://model", (), "own", None),
    ],
)
def test_the_graders_clock_runs_where_more_than_this_process_plays(
    llm_url: str | None, servers: tuple[str, ...], channel: Channel, limit: float | None
) -> None:
    """A slow machine's processor has all games of a model wait at once."""
    environment = EnvironmentSettings(servers=servers, channel=channel)
    policy = None if llm_url else "random"
    run = EvaluationRun(llm_url=llm_url, policy=policy, environment=environment)
    assert rules_of(run).timeout_s == limit
