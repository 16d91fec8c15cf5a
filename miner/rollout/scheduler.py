"""Plays groups of episodes concurrently, through failures.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from miner.config.errors import ConfigurationError
from miner.environments.base import EnvironmentSource, EpisodeTask
from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.outages import MOST_REPLAYS, Outages
from miner.inference.sampler import Sampler, SamplerError
from miner.rollout.episode import (
    EpisodeParams,
    EpisodeTooLong,
    RolloutStopped,
    play_episode,
)
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)

FINAL_FAILURES = (EpisodeTooLong, ConfigurationError, RolloutStopped)
"""A second attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class RetryParams:
    """Bounds on attempts and time.

    Attributes:
        infrastructure_attempts: attempts that may fail with an `InfrastructureError`, at most.
        protocol_attempts: the same for a `ProtocolError`.
        sampler_attempts: the same for a `SamplerError`.
        episode_seconds: wall time of one attempt; beyond it the attempt counts as an
            `InfrastructureError`.
        pause_seconds: pause before the second attempt; it doubles with each further one.
    """

    infrastructure_attempts: int = 3
    protocol_attempts: int = 2
    sampler_attempts: int = 2
    episode_seconds: float = 600.0
    pause_seconds: float = 0.5

    def attempts(self, error: Exception) -> int:
        """Number of attempts that may fail like this before the episode is lost."""
        if isinstance(error, SamplerError):
            return self.sampler_attempts
        if isinstance(error, ProtocolError):
            return self.protocol_attempts
        return self.infrastructure_attempts


LOUD_LOSSES = 3
"""So many are told one by one: a server that dies loses all the episodes that it was serving."""


class Scheduler:
    """Runs groups of episodes from one source with one sampler.

    Args:
        source: where episodes are played; its capacity bounds concurrency.
        sampler: what answers; it may be shared by all episodes.
        renderer: turns messages into tokens.
        episode: sampling parameters and the episode's token limit.
        retry: bounds on attempts and time.
        on_episode: called with each outcome as it comes out.
        places: episodes at once, where the source's capacity is shared with other processes.
        outages: waits for servers that go away; without it their episodes fail like others.
    """

    def __init__(
        self,
        source: EnvironmentSource,
        sampler: Sampler,
        renderer: ChatRenderer,
        episode: EpisodeParams,
        *,
        retry: RetryParams | None = None,
        on_episode: Callable[[Outcome], None] = lambda outcome: None,
        places: int | None = None,
        outages: Outages | None = None,
    ) -> None:
        self._source = source
        self._sampler = sampler
        self._renderer = renderer
        self._episode = episode
        self._retry = retry or RetryParams()
        self._on_episode = on_episode
        self._losses = 0
        self._places = asyncio.Semaphore(places or source.capacity)
        self._outages = outages

    async def run(self, groups: Sequence[Group]) -> list[GroupResult]:
        """Play `groups`; results are in their order.

        Raises: ExceptionGroup of errors that are not typed failures.
        """
        self._losses = 0
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

    async def _play_group(self, group: Group) -> GroupResult:
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(self._play(group.task)) for _ in range(group.size)]
        return GroupResult(group, tuple(task.result() for task in tasks))

    async def _play(self, task: EpisodeTask) -> Outcome:
        outcome = await self._play_with_retries(task)
        if isinstance(outcome, LostEpisode) and not isinstance(outcome.error, RolloutStopped):
            self._losses += 1
            logger.log(
                logging.WARNING if self._losses <= LOUD_LOSSES else logging.DEBUG,
                "lost %s after %d attempts: %s: %s",
                task, outcome.attempts, type(outcome.error).__name__, outcome.error,
            )  # fmt: skip
        self._on_episode(outcome)
        return outcome

    async def _play_with_retries(self, task: EpisodeTask) -> Outcome:
        avoid: set[str] = set()
        failures: Counter[type[Exception]] = Counter()
        replays = iter(range(MOST_REPLAYS))
        for attempt in itertools.count(1):
            try:
                return replace(await self._attempt(task, avoid), attempts=attempt)
            except FINAL_FAILURES as error:
                return LostEpisode(task, error, attempt)
            except (InfrastructureError, ProtocolError, SamplerError) as error:
                if await self._was_outage(error) and next(replays, None) is not None:
                    continue
                failures[type(error)] += 1
                if failures[type(error)] >= self._retry.attempts(error):
                    return LostEpisode(task, error, attempt)
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

    async def _attempt(self, task: EpisodeTask, avoid: set[str]) -> Trajectory:
        async with self._places:
            self._episode.check_going()
            environment = self._source.open(avoid)
            try:
                async with asyncio.timeout(self._retry.episode_seconds):
                    return await play_episode(
                        environment,
                        task,
                        self._sampler,
                        self._renderer,
                        self._episode,
                    )
            except TimeoutError as error:
                raise InfrastructureError(
                    f"{task} on {environment.server} was not over after "
                    f"{self._retry.episode_seconds:g} s: the server hangs, or the limit is too low",
                    server=environment.server,
                ) from error
            finally:
                await asyncio.shield(environment.close())
