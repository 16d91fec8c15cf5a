"""Methods that take too long: each costs its own episode, and not the run."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError
from miner.environments.own import Step
from miner.environments.own.source import OwnSource
from miner.environments.own.worker import MOST_STUCK
from miner.rollout.groups import Group, LostEpisode
from miner.rollout.scheduler import RetryParams, Scheduler
from tests.environments.own.test_own import Adding, checked, played, task, two_begun

BAD = 3
"""A seed whose `reset` does not return."""
STEP = r"Blocked.step \(test_blocking.py, line \d+\) has not returned for 1 s"
RESET = STEP.replace("step", "reset")


class Blocked(Adding):
    """Does not return for some replies, and for a seed."""

    seconds = 1.0
    released: threading.Event

    def reset(self, seed: int) -> str:
        if seed == BAD:
            self.released.wait()
        return super().reset(seed)

    def step(self, reply: str) -> Step:
        if reply == "block":
            self.released.wait()
        return Adding.step(self, reply)


class Sleeping(Adding):
    seconds = 2.0

    async def step(self, reply: str) -> Step:  # type: ignore[override]
        await asyncio.Event().wait()
        return Step(score=0.0)


@pytest.fixture
def blocked() -> Iterator[type[Blocked]]:
    Blocked.released = threading.Event()
    yield Blocked
    Blocked.released.set()


async def test_a_method_that_never_returns_loses_its_episode_and_is_named(
    blocked: type[Blocked],
) -> None:
    stuck, other = await two_begun(blocked)
    with pytest.raises(InfrastructureError, match=rf"{STEP} \(the limit is Blocked.seconds\)"):
        await stuck.step("block")
    assert (await other.step("3")).done  # on another thread
    for seed in range(10, 9 + MOST_STUCK):
        await stuck.reset(task(blocked, seed))
        with pytest.raises(InfrastructureError, match=STEP):
            await stuck.step("block")
    with pytest.raises(InfrastructureError, match="3 times: nothing is called until one returns"):
        await other.reset(task(blocked))


async def test_replies_on_which_a_method_blocked_are_not_played_again(
    blocked: type[Blocked],
) -> None:
    source = OwnSource(blocked)
    environment = source.open()
    for again in ["", *[": the same seed and replies are not played again"] * MOST_STUCK]:
        await environment.reset(task(blocked))
        with pytest.raises(InfrastructureError, match=rf"{STEP}{again} \(the limit"):
            await environment.step("block")
    await environment.reset(task(blocked))
    assert (await environment.step("3")).done


async def test_methods_that_return_late_end_no_other_episode(blocked: type[Blocked]) -> None:
    source, before = OwnSource(blocked), set(threading.enumerate())
    environment = source.open()
    for seed in range(10, 10 + MOST_STUCK):
        await environment.reset(task(blocked, seed))
        with pytest.raises(InfrastructureError, match=STEP):
            await environment.step("block")
    blocked.released.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "own environment":
            await asyncio.to_thread(thread.join, 30)
    await environment.reset(task(blocked))
    assert (await environment.step("3")).done


async def test_a_seed_that_blocks_loses_its_group_alone(blocked: type[Blocked]) -> None:
    attempt = partial(played, itertools.repeat("99"))
    scheduler = Scheduler(OwnSource(blocked), attempt, retry=RetryParams(pause_seconds=0.1))
    for seeds in (range(6), range(10, 13)):
        results = await scheduler.run([Group(task(blocked, seed), 4) for seed in seeds])
        for result in results:
            outcomes = list(result.outcomes)
            if result.group.task.seed == BAD:
                assert all(isinstance(outcome, LostEpisode) for outcome in outcomes)
            else:
                assert outcomes == [0.25] * 4


async def test_a_method_is_named_where_episodes_end_sooner_than_its_limit(
    blocked: type[Blocked],
) -> None:
    retry = RetryParams(episode_seconds=1.2, pause_seconds=0.0)
    scheduler = Scheduler(OwnSource(blocked), partial(played, itertools.repeat("99")), retry=retry)
    lost = await scheduler.episode(task(blocked, BAD))
    assert isinstance(lost, LostEpisode)
    with pytest.raises(InfrastructureError, match=RESET):
        raise lost.error


async def test_a_thread_that_was_idle_for_long_is_not_taken_for_a_blocked_one() -> None:
    class Quick(Adding):
        seconds = 0.5

    environment = OwnSource(Quick).open()
    await environment.reset(task(Quick))
    await asyncio.sleep(1.0)
    assert (await environment.step("3")).done


class Leaving(Adding):
    """Begins something in the background that ends its thread."""

    async def step(self, reply: str) -> Step:  # type: ignore[override]
        async def leave() -> None:
            raise SystemExit

        if reply == "leave":
            self.kept = asyncio.ensure_future(leave())
        return Adding.step(self, reply)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_that_has_ended_is_replaced() -> None:
    source, before = OwnSource(Leaving), set(threading.enumerate())
    leaving, other = source.open(), source.open()
    await leaving.reset(task(Leaving))
    [thread] = set(threading.enumerate()) - before
    await leaving.step("leave")
    await asyncio.to_thread(thread.join, 60)
    await other.reset(task(Leaving))
    assert (await other.step("3")).done


async def test_a_coroutine_that_never_returns_blocks_no_other() -> None:
    source = OwnSource(Sleeping)
    environments = [source.open() for _ in range(MOST_STUCK + 1)]
    for environment in environments:
        await environment.reset(task(Sleeping))
    steps = (environment.step("3") for environment in environments)
    for ended in await asyncio.gather(*steps, return_exceptions=True):
        assert isinstance(ended, InfrastructureError)
        assert "Sleeping.step has not returned for 2 s" in str(ended)


async def test_an_environment_that_blocks_is_refused_before_training(
    blocked: type[Blocked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "replies", ("block",))
    with pytest.raises(ConfigurationError, match=r"Blocked.step .* has not returned .*fix it"):
        await checked(blocked)
