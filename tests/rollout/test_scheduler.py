"""Every task comes out exactly once, whatever fails, and nothing stays open."""

import asyncio
import itertools
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.config.errors import ConfigurationError
from miner.environments import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.outages import MOST_REPLAYS
from miner.inference.sampler import SamplerError, SamplingParams
from miner.rollout.episode import EpisodeParams, EpisodeTooLong, sampled
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import Trajectory
from tests.builders import (
    CountingEnvironment,
    ScriptedSampler,
    ScriptedSource,
    build_sample,
    build_task,
    build_tokenizer,
    build_trajectory,
)
from tests.virtual_time import run_paused

TOKENIZER = build_tokenizer()
RENDERER = ChatRenderer(TOKENIZER)
EPISODE = EpisodeParams(SamplingParams(max_tokens=4), max_tokens=2000)
RETRY = RetryParams(infrastructure_attempts=3, other_attempts=2, pause_seconds=0.0)
LIMITS = {InfrastructureError: 3, ProtocolError: 2, SamplerError: 2, ConfigurationError: 1}
ROUNDS = 2


def number(text="1"):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return build_sample([*ids, TOKENIZER.eos_token_id])


class PlannedEnvironment(CountingEnvironment):
    """Takes the next failure of its task's plan: (error, round to fail in) or None."""

    def __init__(self, source, server, on_close):
        super().__init__(ROUNDS, server, self._fail, on_close)
        self._source = source
        self._failure = None

    async def reset(self, task):
        self._source.started[task.task_id] += 1
        self._failure = next(self._source.plans[task.task_id], None)
        return await super().reset(task)

    async def _fail(self, round_number):
        if self._failure and self._failure[1] == round_number:
            error = self._failure[0]
            if error is None:
                await asyncio.Event().wait()
            of_a_server = issubclass(error, EnvironmentFault)
            raise error("boom", server=self.server) if of_a_server else error("boom")


class PlannedSource(ScriptedSource):
    def __init__(self, plans, capacity=4):
        super().__init__(self._make, capacity=capacity)
        self.plans = defaultdict(lambda: iter(()), {i: iter(p) for i, p in enumerate(plans)})
        self.started = Counter()
        self.avoided = []

    def _make(self, opened, avoid, on_close):
        self.avoided.append(avoid)
        server = next(s for s in ("a", "b", "c", "") if s not in avoid)
        return PlannedEnvironment(self, server, on_close)


def schedule(source, *, reply=lambda _: number(), retry=RETRY, episode=EPISODE, **options):
    return Scheduler(
        source, sampled(ScriptedSampler(reply), RENDERER, episode), retry=retry, **options
    )


def run(source, groups, **options):
    return asyncio.run(schedule(source, **options).run(groups))


def expected_outcome(plan):
    """(error class or None, attempts) that a task with this plan must come to."""
    seen = Counter()
    for attempt, (error, _) in enumerate(plan, 1):
        seen[error] += 1
        if seen[error] == LIMITS[error]:
            return error, attempt
    return None, len(plan) + 1


failures = st.tuples(st.sampled_from(sorted(LIMITS, key=str)), st.integers(-1, ROUNDS - 1))


@settings(max_examples=100)
@given(plans=st.lists(st.lists(failures, max_size=8), max_size=8), capacity=st.integers(1, 5))
def test_every_task_comes_out_exactly_once(plans, capacity):
    source, reported = PlannedSource(plans, capacity), []
    groups = [Group(build_task(i), 1) for i in range(len(plans))]
    results = run(source, groups, on_episode=reported.append)
    outcomes = [outcome for result in results for outcome in result.outcomes]
    assert [o.task.task_id for o in outcomes] == list(range(len(plans)))
    assert Counter(map(id, reported)) == Counter(map(id, outcomes))
    for outcome, plan in zip(outcomes, plans, strict=True):
        error, attempts = expected_outcome(plan)
        assert source.started[outcome.task.task_id] == attempts
        assert isinstance(outcome, LostEpisode if error else Trajectory)
        assert error is None or (type(outcome.error), outcome.attempts) == (error, attempts)
    assert source.open_now == 0
    assert source.most_open <= capacity


@settings(max_examples=40)
@given(plan=st.lists(failures, max_size=30), size=st.integers(1, 6))
def test_groups_shrink_rather_than_lie(plan, size):
    """Members of one task share its failures; those that are lost leave no score behind."""
    (result,) = run(PlannedSource([plan]), [Group(build_task(0), size)])
    assert len(result.outcomes) == size
    assert len(result.trajectories) + len(result.lost) == size
    assert [t.score for t in result.trajectories] == [1.0] * len(result.trajectories)


@pytest.mark.parametrize(
    ("lost", "said"), [(3, []), (8, ["5 more episodes of this rollout were lost"])]
)
def test_a_server_that_takes_many_episodes_with_it_does_not_flood_the_log(lost, said, caplog):
    source = PlannedSource([[(SamplerError, 0)] * 20])
    (result,) = run(source, [Group(build_task(0), lost)])
    told = [record.getMessage() for record in caplog.records]
    assert len(result.lost) == lost
    assert [line.startswith("lost EpisodeTask") for line in told[:3]] == [True] * 3
    assert told[3:] == said


def test_retries_avoid_the_servers_that_failed():
    source = PlannedSource([[(InfrastructureError, 0), (ProtocolError, 1), (SamplerError, 0)]])
    (result,) = run(source, [Group(build_task(0), 1)])
    assert source.avoided == [set(), {"a"}, {"a", "b"}, {"a", "b"}]
    assert len(result.trajectories) == 1


def test_hanging_episode_is_an_infrastructure_error():
    source = PlannedSource([[(None, 1)]])
    retry = RetryParams(infrastructure_attempts=1, episode_seconds=0.05, pause_seconds=0.0)
    (result,) = run(source, [Group(build_task(0), 1)], retry=retry)
    (lost,) = result.lost
    assert isinstance(lost.error, InfrastructureError)
    assert "not over after 0.05 s" in str(lost.error)
    assert lost.error.server == "a"
    assert source.open_now == 0


class SlowToStart(PlannedSource):
    async def ready(self, environment, task):
        await asyncio.sleep(50)


def test_waiting_for_a_place_is_no_part_of_an_episodes_time():
    retry = replace(RETRY, episode_seconds=5.0)
    running = schedule(SlowToStart([]), retry=retry).run([Group(build_task(0), 1)])
    (result,), paused = run_paused(running)
    assert (len(result.trajectories), paused) == (1, 50.0)


async def test_an_environment_that_is_waited_for_is_closed_when_the_run_is_cancelled():
    source = SlowToStart([])
    running = asyncio.create_task(schedule(source).run([Group(build_task(0), 1)]))
    while not source.open_now:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (source.opened, source.open_now) == (1, 0)


def test_too_long_episode_is_lost_at_once_and_counted():
    source = PlannedSource([])
    episode = EpisodeParams(SamplingParams(max_tokens=4), max_tokens=10)
    (result,) = results = run(source, [Group(build_task(0), 2)], episode=episode)
    assert [type(lost.error) for lost in result.lost] == [EpisodeTooLong] * 2
    assert source.opened == 2
    stats = RolloutStats.of(results)
    assert (stats.lost_episodes, stats.too_long_episodes, stats.episodes) == (2, 2, 0)


def test_groups_without_variance_are_those_with_equal_rewards():
    """One of two replies is a number, so that scores differ; what they are worth may not."""
    replies = itertools.cycle([number("1"), number("x")])
    source = PlannedSource([], capacity=1)  # one episode after another, of one reply each
    source.make = lambda opened, avoid, on_close: CountingEnvironment(1, on_close=on_close)
    results = run(source, [Group(build_task(0), 2)], reply=lambda _: next(replies))
    assert [t.score for t in results[0].trajectories] == [1.0, 0.0]
    assert RolloutStats.of(results).flat_groups == 0
    assert RolloutStats.of(results, lambda _: 0.5).flat_groups == 1
    too_long = EpisodeParams(SamplingParams(max_tokens=4), max_tokens=10)
    lost = run(PlannedSource([]), [Group(build_task(0), 2)], episode=too_long)
    assert RolloutStats.of([*results, *lost]).flat_groups == 1


@pytest.mark.parametrize("stop_at", [1, 4, 9, 25])
def test_cancelled_run_closes_every_environment(stop_at):
    """Cancelled while some episodes play, some wait for a place and some hang."""

    async def cancel_midway():
        source = PlannedSource([[(None, 0)], [(None, -1)]], capacity=3)
        asked, replies = asyncio.Event(), itertools.count(1)

        def reply(_):
            if next(replies) == stop_at:
                asked.set()
            return number()

        scheduler = schedule(source, reply=reply)
        groups = [Group(build_task(i), 4) for i in (3, 4, 5, 0, 1, 6)]
        running = asyncio.create_task(scheduler.run(groups))
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert source.opened > 0
        assert source.open_now == 0

    asyncio.run(cancel_midway())


def test_bug_ends_the_run_and_closes_every_environment():
    source = PlannedSource([[(ZeroDivisionError, 0)]])
    source.make = lambda opened, avoid, on_close: CountingEnvironment(
        before=divide_by_zero if opened == 2 else None, on_close=on_close
    )
    with pytest.raises(ExceptionGroup) as caught:
        run(source, [Group(build_task(i), 2) for i in range(4)])
    assert caught.group_contains(ZeroDivisionError)
    assert source.open_now == 0


async def divide_by_zero(round_number):
    raise ZeroDivisionError


def test_statistics_add_up():
    plans = [[(InfrastructureError, 1)], [(ConfigurationError, -1)], []]
    groups = [Group(build_task(i), 1) for i in range(3)]
    results = run(PlannedSource(plans), groups, reply=lambda _: number("x1"))
    stats = RolloutStats.of(results)
    finished = [t for result in results for t in result.trajectories]
    assert (stats.episodes, stats.lost_episodes) == (2, 1)
    assert (stats.replies, stats.invalid_replies, stats.cut_replies) == (4, 4, 0)
    assert sum(stats.drift.values()) == stats.replies - stats.episodes
    assert stats.tokens == sum(sum(r.loss_mask) for t in finished for r in t.rows)
    assert stats.score == 0.0
    assert RolloutStats.of([]).episodes == 0


def test_statistics_of_processes_are_those_of_all_their_episodes():
    replies = itertools.cycle([number("1"), number("x"), number("2")])
    groups = [Group(build_task(i), 2) for i in range(3)]
    mine = run(PlannedSource([], capacity=1), groups, reply=lambda _: next(replies))
    plans, cut = [[(ConfigurationError, 0)]], build_sample(number("x").token_ids[:-1], stop=False)
    others = run(PlannedSource(plans), [Group(build_task(0), 2)], reply=lambda _: cut)
    parts = [RolloutStats.of(results) for results in (mine, [], others)]
    assert RolloutStats.merged(parts) == RolloutStats.of([*mine, *others])
    assert (parts[2].cut_replies, parts[2].replies, parts[2].lost_episodes) == (2, 2, 1)
    assert 0 < RolloutStats.merged(parts).score < 1
    assert RolloutStats.merged(parts[1:2]).score is None


def test_score_and_reward_are_those_of_the_policys_own_games_on_all_processes():
    own, guided = build_trajectory(0.2), build_trajectory(0.7)
    picked = tuple(replace(turn, sampled_tokens=0) for turn in guided.turns)
    one, two, three = (
        GroupResult(Group(build_task(i), 1), (each,))
        for i, each in enumerate(
            (own, replace(guided, turns=picked), replace(guided, turns=picked))
        )
    )
    parts = [RolloutStats.of(some, lambda each: each.score - 0.5) for some in ([one, two], [three])]
    assert [part.score for part in parts] == [0.2, None]
    assert [part.reward for part in parts] == [-0.3, None]
    assert [part.replies for part in parts] == [len(own.turns), 0]
    merged = RolloutStats.merged(parts)
    assert (merged.score, merged.reward, merged.episodes, merged.own_episodes) == (0.2, -0.3, 3, 1)
    assert RolloutStats.merged(parts[1:]).reward is RolloutStats.merged(parts[1:]).score is None


def test_every_episode_has_a_separate_session_which_ends():
    sampler = ScriptedSampler(lambda _: number())
    scheduler = Scheduler(PlannedSource([]), sampled(sampler, RENDERER, EPISODE), retry=RETRY)
    asyncio.run(scheduler.run([Group(build_task(i), 2) for i in range(3)]))
    assert len(sampler.exchanges) == 6
    assert sorted(sampler.ended) == sorted(sampler.exchanges)


class AlwaysOver:
    """Says that each failure was an outage, which is over."""

    def __init__(self):
        self.asked, self.looked = [], 0

    async def waited_out(self, server):
        self.asked.append(server)
        return True

    async def look_again(self):
        self.looked += 1


@pytest.mark.parametrize(
    ("error", "failures", "lost_after", "asked"),
    [
        (InfrastructureError, MOST_REPLAYS, None, MOST_REPLAYS),
        (InfrastructureError, 99, MOST_REPLAYS + 3, MOST_REPLAYS + 3),
        (ProtocolError, 99, 2, 0),
    ],
)
def test_outages_take_no_attempt_within_bounds(error, failures, lost_after, asked):
    source, outages = PlannedSource([[(error, 0)] * failures]), AlwaysOver()
    (result,) = run(source, [Group(build_task(0), 1)], outages=outages)
    assert source.started[0] == (lost_after or failures + 1)
    assert len(result.lost) == (lost_after is not None)
    assert len(outages.asked) == asked
    assert outages.looked == 1


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 3.0), (2, 3.0 + 6.0), (3, 3.0 + 6.0 + 12.0)]
)
def test_each_further_attempt_comes_after_a_longer_pause(failures, seconds):
    source = PlannedSource([[(InfrastructureError, 0)] * failures])
    retry = RetryParams(infrastructure_attempts=4, pause_seconds=3.0)
    running = schedule(source, retry=retry).run([Group(build_task(0), 1)])
    (result,), paused = run_paused(running)
    assert len(result.trajectories) == 1
    assert paused == pytest.approx(seconds)


def test_there_is_no_pause_after_the_last_try_of_an_episode():
    source = PlannedSource([[(InfrastructureError, 0)] * 2])
    retry = RetryParams(infrastructure_attempts=2, pause_seconds=3.0)
    (result,), paused = run_paused(schedule(source, retry=retry).run([Group(build_task(0), 1)]))
    assert len(result.lost) == 1
    assert paused == pytest.approx(3.0)
