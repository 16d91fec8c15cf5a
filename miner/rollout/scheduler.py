"""Plays episodes concurrently, through failures: groups to learn from, and evaluations.

Invariants:
* every member of every group comes out exactly once, as a trajectory or as a `LostEpisode`;
* never more environments are open at once than the source's capacity, and each one opened is
  closed, also when the run is cancelled;
* a retry plays the same task from its start, on another server where there is one; what a failed
  attempt sampled is discarded;
* attempts that an outage of the servers has ended are not counted against an episode;
* errors that are not typed failures are bugs: they end the run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from miner.config.errors import ConfigurationError
from miner.environments.base import Environment, EnvironmentSource, EpisodeTask
from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.outages import MOST_REPLAYS, Outages
from miner.inference.sampler import SamplerError
from miner.rollout.episode import EpisodeTooLong, RolloutStopped
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")

PlayAttempt = Callable[[Environment, EpisodeTask, int], Awaitable[T]]
"""Plays an episode to its end; the number is the attempt's, from 1."""

FINAL_FAILURES = (EpisodeTooLong, ConfigurationError, RolloutStopped)
"""A second attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class RetryParams:
    """Bounds on attempts and time.

    Attributes:
        infrastructure_attempts: attempts that may fail with an `InfrastructureError`, at most.
        other_attempts: the same for a `ProtocolError` or a `SamplerError`.
        episode_seconds: wall time of one attempt, beyond which it counts as an
            `InfrastructureError`; None: unlimited.
        pause_seconds: pause before the second attempt; it doubles with each further one.
    """

    infrastructure_attempts: int = 3
    other_attempts: int = 2
    episode_seconds: float | None = 600.0
    pause_seconds: float = 0.5

    def attempts(self, error: Exception) -> int:
        """Number of attempts that may fail like this before the episode is lost."""
        infrastructure = isinstance(error, InfrastructureError)
        return self.infrastructure_attempts if infrastructure else self.other_attempts


LOUD_LOSSES = 3
"""So many are logged one by one: a dying server loses all the episodes that it was serving."""


def _level(count: int) -> int:
    return logging.WARNING if count <= LOUD_LOSSES else logging.DEBUG


class Scheduler(Generic[T]):
    """Runs episodes from one source.

    Args:
        source: source of episodes; its capacity bounds concurrency.
        play: plays one attempt.
        retry: bounds on attempts and time.
        on_episode: called with each outcome as it comes out.
        places: episodes at once, where the source's capacity is shared with other processes.
        outages: waits for servers that go away; without it their episodes fail like others.
    """

    def __init__(
        self,
        source: EnvironmentSource,
        play: PlayAttempt[T],
        *,
        retry: RetryParams | None = None,
        on_episode: Callable[[T | LostEpisode], None] = lambda outcome: None,
        places: int | None = None,
        outages: Outages | None = None,
    ) -> None:
        self._source = source
        self._play = play
        self._retry = retry or RetryParams()
        self._on_episode = on_episode
        self._losses = self._broken = 0
        self._places = asyncio.Semaphore(places or source.capacity)
        self._outages = outages

    async def run(self: Scheduler[Trajectory], groups: Sequence[Group]) -> list[GroupResult]:
        """Play `groups`; results are in their order.

        Raises: ExceptionGroup of errors that are not typed failures.
        """
        self._losses = self._broken = 0
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(self._play_group(group)) for group in groups]
            if self._outages:
                running.create_task(self._outages.look_again())
        if self._losses > LOUD_LOSSES:
            logger.warning(
                "%d more episodes of this rollout were lost",
                self._losses - LOUD_LOSSES,
            )
        return [task.result() for task in tasks]

    async def _play_group(self: Scheduler[Trajectory], group: Group) -> GroupResult:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(self._member(group.task)) for _ in range(group.size)]
        return GroupResult(group, tuple(task.result() for task in tasks))

    async def _member(self, task: EpisodeTask) -> T | LostEpisode:
        outcome = await self.episode(task)
        if isinstance(outcome, LostEpisode) and not isinstance(outcome.error, RolloutStopped):
            self._losses += 1
            logger.log(
                _level(self._losses),
                "lost %s after %d attempts: %s: %s",
                task, outcome.attempts, type(outcome.error).__name__, outcome.error,
            )  # fmt: skip
        return outcome

    async def episode(self, task: EpisodeTask) -> T | LostEpisode:
        """Play `task` until an attempt succeeds or no more may be made."""
        outcome = await self._attempts(task)
        self._on_episode(outcome)
        return outcome

    async def _attempts(self, task: EpisodeTask) -> T | LostEpisode:
        avoid: set[str] = set()
        failures: Counter[type[Exception]] = Counter()
        replays = iter(range(MOST_REPLAYS))
        for attempt in itertools.count(1):
            try:
                return await self._attempt(task, avoid, attempt)
            except FINAL_FAILURES as error:
                return LostEpisode(task, error, attempt)
            except (InfrastructureError, ProtocolError, SamplerError) as error:
                if await self._was_outage(error) and next(replays, None) is not None:
                    continue
                failures[type(error)] += 1
                if failures[type(error)] >= self._retry.attempts(error):
                    return LostEpisode(task, error, attempt)
                if isinstance(error, ProtocolError):  # another attempt would hide it
                    self._broken += 1
                    logger.log(_level(self._broken), "%s is played again: %s", task, error)
                if isinstance(error, EnvironmentFault):
                    avoid.add(error.server)
            await asyncio.sleep(self._retry.pause_seconds * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    async def _was_outage(self, error: Exception) -> bool:
        return (
            self._outages is not None
            and isinstance(error, InfrastructureError)
            and await self._outages.waited_out(error.server)
        )

    async def _attempt(self, task: EpisodeTask, avoid: set[str], number: int) -> T:
        async with self._places:
            await asyncio.sleep(0)  # players without a model never wait: let an interrupt in
            environment = self._source.open(avoid)
            try:
                await self._source.ready(environment, task)
                async with asyncio.timeout(self._retry.episode_seconds):
                    return await self._play(environment, task, number)
            except TimeoutError as error:
                raise InfrastructureError(
                    f"{task} on {environment.server} was not over after "
                    f"{self._retry.episode_seconds:g} s: the server hangs, or the limit is too low",
                    server=environment.server,
                ) from error
            finally:
                await asyncio.shield(environment.close())
