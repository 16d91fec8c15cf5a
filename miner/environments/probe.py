"""The conformance probe: plays a few episodes with each server before training relies on it.

Invariants:
* servers are asked in parallel and none is waited for longer than its limit, so a blocked or dead
  server costs seconds and is a finding, not an exception;
* a failure of infrastructure is a finding only if it comes back in every try within the limit;
* nothing of the probe is still under way when it returns;
* /step is judged by the cards that left the hand, never by the server's claim;
* what the builtin channel is compared with are the very messages the server sent.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from miner.config.errors import ConfigurationError
from miner.environments.affinetes import AffinetesClient
from miner.environments.base import Environment, EnvironmentSource, EpisodeTask
from miner.environments.builtin import BuiltinSource
from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError
from miner.environments.games import PromptFormat, PromptFormatError
from miner.environments.graded import GradedSource
from miner.environments.probe_episode import (
    TRIES,
    ProbeEpisode,
    first_difference,
    pause_s,
    play,
    play_with_tries,
)
from miner.environments.probe_report import Channel, ProbeReport, ServerFindings
from miner.environments.servers import check_server_urls
from miner.environments.step import StepSource
from miner.games import game_named

logger = logging.getLogger(__name__)

UNPARSABLE_REPLY: Final = "?"
# Of a slow server; one that plays other cards does so two times in three.
_ENOUGH_ACTIONS: Final = 20


async def probe(
    urls: Sequence[str],
    environment: str = "goofspiel",
    *,
    limit_s: float = 5.0,
    patience_s: float = 0.0,
) -> ProbeReport:
    """Find out what each server does and which channel to train on.

    Args:
        urls: base URLs of the servers.
        environment: the game to probe with.
        limit_s: seconds for the first answer of a server, and again for all episodes with it;
            doubled each time that all are asked again, as far as patience reaches.
        patience_s: seconds to wait for servers that are still starting, or that fail so that none
            of them could be trained on; where some could, the others are asked once again.

    Raises: `ConfigurationError` for invalid URLs and for an unknown game.
    """
    checked = check_server_urls(urls)
    game_named(environment)
    deadline = time.monotonic() + patience_s
    found: dict[str, ServerFindings] = {}
    pending: Sequence[str] = checked
    for failures in itertools.count():
        probes = [_ServerProbe(url, environment, limit_s) for url in pending]
        found |= await _probe_once(probes, limit_s, deadline)
        report = _report(environment, [found[url] for url in checked])
        # for servers that may yet be of use beside others, one more look is enough
        transient = any(each.transient for each in probes) and (
            report.channel == "builtin" or failures == 0
        )
        # one that never answered may have taken all the patience of the others
        in_time = time.monotonic() < deadline or (failures == 0 and patience_s > 0)
        if not (transient and in_time):
            return report
        if report.channel != "builtin":
            pending = [each.url for each in probes if each.transient]
        if failures == 0:
            logger.warning("%s; asking again, for up to %.0f s", report.reason, patience_s)
        limit_s = min(2 * limit_s, max(limit_s, deadline - time.monotonic()))
        await asyncio.sleep(pause_s(failures))
    raise AssertionError("unreachable")


async def _probe_once(
    probes: Sequence["_ServerProbe"], limit_s: float, deadline: float
) -> dict[str, ServerFindings]:
    graded = GradedSource(
        [each.url for each in probes],
        turn_timeout_s=0.8 * limit_s,
        episode_timeout_s=max(1, round(2 * limit_s)),
    )
    try:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(each.run(graded, deadline)) for each in probes]
    finally:
        await graded.close()
    return {run.result().url: run.result() for run in runs}


def _report(environment: str, findings: Sequence[ServerFindings]) -> ProbeReport:
    formats = {s.prompt_format for s in findings if s.prompt_format is not None}
    notes = ("the servers word their prompts differently",) if len(formats) > 1 else ()
    return ProbeReport(environment, tuple(findings), notes)


async def open_source(
    urls: Sequence[str],
    channel: Channel | Literal["auto"] = "auto",
    environment: str = "goofspiel",
    *,
    report: ProbeReport | None = None,
    patience_s: float = 0.0,
) -> tuple[EnvironmentSource, ProbeReport]:
    """A source of episodes on the servers that can play `channel`, and the findings behind it.

    Args:
        channel: "auto" takes the recommended one.
        report: findings of an earlier probe of the same servers.

    Raises: `ConfigurationError` for invalid URLs and for an unknown game, `InfrastructureError`
    when a channel is forced that no server can play.
    """
    if report is None and channel == "builtin" and not urls:
        report = ProbeReport(environment, ())
    if report is None:
        report = await probe(urls, environment, patience_s=patience_s)
    chosen = report.channel if channel == "auto" else channel
    learned = report.prompt_format
    formats = {} if learned is None else {environment: learned}
    if chosen == "builtin":
        return BuiltinSource(formats), report
    usable = report.usable(chosen) or _forced(report, chosen)
    if chosen == "step":
        return StepSource(usable, formats), report
    return GradedSource(usable), report


def _forced(report: ProbeReport, channel: Channel) -> tuple[str, ...]:
    """Servers for a channel that the user forces: /step also where it plays other cards."""
    if channel == "step":
        working = tuple(s.url for s in report.servers if s.step_asked and not s.step_problem)
        if working:
            return working
    problems = [s.problem or _problem_of(s, channel) for s in report.servers]
    raise InfrastructureError(
        f"no server can play the {channel} channel ({next(filter(None, problems), 'none given')}); "
        f"start one, or choose the channel auto or builtin"
    )


def _problem_of(server: ServerFindings, channel: Channel) -> str:
    return server.step_problem if channel == "step" else server.graded_problem


class _ServerProbe:
    """One look at a server.

    Attributes:
        transient: true if the server is of no use for want of infrastructure or time.
    """

    def __init__(self, url: str, environment: str, limit_s: float) -> None:
        self.url = url
        self.transient = False
        self._environment = environment
        self._limit_s = limit_s
        self._first_id = game_named(environment).task_ids[0]
        self._found = ServerFindings(url)

    async def run(self, graded: GradedSource, deadline: float) -> ServerFindings:
        """All findings about the server. Nothing depends on the version that it claims."""
        try:
            await self._greet(deadline)
        except (EnvironmentFault, ConfigurationError) as fault:
            self._found.problem = str(fault)
            return self._found
        async with asyncio.TaskGroup() as group:
            group.create_task(self._try_step())
            group.create_task(self._try_graded(graded))
        self.transient &= not (self._found.step_usable or self._found.graded_usable)
        return self._found

    async def _greet(self, deadline: float) -> None:
        client = AffinetesClient(self.url, reply_timeout_s=self._limit_s)
        began = time.monotonic()
        try:
            for failures in itertools.count():
                started = time.perf_counter()
                try:
                    api = await client.api_info()
                    self._found.api_title, self._found.api_version = api.title, api.version
                except InfrastructureError as fault:
                    late = failures + 1 >= TRIES or time.monotonic() >= began + self._limit_s
                    if late and time.monotonic() >= deadline:
                        raise
                    if failures == 0 and deadline > began:
                        waits = f"waiting for it, up to {deadline - began:.0f} s"
                        logger.warning("%s; %s", fault, waits)
                    await asyncio.sleep(pause_s(failures))
                    continue
                except ProtocolError:
                    pass  # it reports no title; the episodes decide
                self._found.latency_ms = 1000 * (time.perf_counter() - started)
                return
        finally:
            await client.close()

    async def _try_step(self) -> None:
        source = StepSource([self.url], reply_timeout_s=self._limit_s)
        # All deck sizes and both seats.
        episodes = [ProbeEpisode(self._task(number, seed=number)) for number in range(5)]
        try:
            self._found.step_problem = await self._play_all(source.open, episodes, "/step")
        except TimeoutError as error:
            if source.stats.asked < _ENOUGH_ACTIONS:
                self._found.step_problem = str(error)
        finally:
            self._found.step_asked = source.stats.asked
            self._found.step_applied = source.stats.applied
            await source.close()

    async def _try_graded(self, graded: GradedSource) -> None:
        others = [url for url in graded.pool.urls if url != self.url]
        # Both seats; two failed replies show where the retry message counts.
        episodes = [
            ProbeEpisode(self._task(0, seed=0), (UNPARSABLE_REPLY, UNPARSABLE_REPLY)),
            ProbeEpisode(self._task(1, seed=1)),
        ]
        started = time.perf_counter()
        try:
            problem = await self._play_all(lambda: graded.open(avoid=others), episodes, "/evaluate")
            self._found.graded_problem = problem
            if problem:
                return
            self._found.graded_seconds = time.perf_counter() - started
            self._found.graded_episodes = len(episodes)
            learned = self._found.prompt_format = self._learned(episodes)
        except (PromptFormatError, TimeoutError) as error:
            self._found.graded_problem = str(error)
        else:
            await self._compare(learned, episodes)

    async def _play_all(
        self,
        open_environment: Callable[[], Environment],
        episodes: Iterable[ProbeEpisode],
        path: str,
    ) -> str:
        """Play `episodes` side by side; returns what kept one from its end, empty if nothing.

        Raises: `TimeoutError` if they were not over within the limit.
        """
        passing: list[str] = []
        final: list[str] = []

        async def played(episode: ProbeEpisode) -> None:
            try:
                await play_with_tries(open_environment, episode, lambda e: passing.append(str(e)))
            except (EnvironmentFault, ConfigurationError) as fault:
                self.transient |= isinstance(fault, InfrastructureError)
                final.append(str(fault))

        try:
            async with asyncio.timeout(self._limit_s), asyncio.TaskGroup() as group:
                for each in episodes:
                    group.create_task(played(each))
        except TimeoutError:
            self.transient = True
            if not final:
                late = f"{self.url}{path} did not finish within {self._limit_s:g} s"
                raise TimeoutError((passing or [late])[-1]) from None
        return final[0] if final else ""

    def _learned(self, episodes: Iterable[ProbeEpisode]) -> PromptFormat:
        first, *others = episodes
        learned = PromptFormat.learn(
            first.conversation, task_id=first.task.task_id, seed=first.task.seed
        )
        for other in others:
            again = PromptFormat.learn(
                other.conversation, task_id=other.task.task_id, seed=other.task.seed
            )
            if replace(again, retry_parts=learned.retry_parts) != learned:
                raise PromptFormatError("two episodes of one server word their prompts differently")
        return learned

    async def _compare(self, learned: PromptFormat, episodes: Iterable[ProbeEpisode]) -> None:
        """Play the same replies in-process and compare every message and the score."""
        source = BuiltinSource({self._environment: learned})
        self._found.builtin_matches = True
        for theirs in episodes:
            ours = ProbeEpisode(theirs.task, tuple(theirs.replies))
            difference = ""
            try:
                await play(source.open(), ours)
                difference = first_difference(ours, theirs)
            except (EnvironmentFault, ConfigurationError) as fault:
                difference = str(fault)
            if difference:
                self._found.builtin_matches = False
                self._found.builtin_difference = difference
                return

    def _task(self, number: int, seed: int) -> EpisodeTask:
        return EpisodeTask(self._environment, self._first_id + number, seed)
