"""Environment servers that go away: waited for, so that their episodes can be played again.

Invariants:
* an outage takes no attempt from an episode as long as patience lasts;
* while no server answers, one coroutine at a time asks, with growing pauses, however many wait;
* an outage is one line when it begins and one when it is over.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

from miner.environments.base import EnvironmentSource

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 15.0
"""Between two questions: so much of an outage is waited in vain at most."""

MOST_REPLAYS = 10
"""Of one episode: one whose server goes away that often may well be the cause."""


def growing_pauses() -> Iterator[float]:
    """1, 2, 4, ... seconds, then the longest pause again and again."""
    return (min(2.0**number, LONGEST_PAUSE_S) for number in itertools.count())


class Stopwatch:
    """Seconds over all times that it ran; read from any thread.

    Args:
        clock: monotonic seconds, injected by tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._before = 0.0

    @property
    def runs(self) -> bool:
        """Return whether it was started and not stopped since."""
        return self._since is not None

    def seconds(self) -> float:
        """All seconds up to now."""
        since = self._since  # another thread may stop it meanwhile
        return self._before + (0.0 if since is None else self._clock() - since)

    def start(self) -> None:
        """Run from now on."""
        self._since = self._clock()

    def stop(self) -> float:
        """Stop; return the seconds since the start."""
        assert self._since is not None, "it does not run"
        seconds = self._clock() - self._since
        self._since = None  # before the sum: a reader must not count it twice
        self._before += seconds
        return seconds


class Outages:
    """Distinguishes an outage from a failed episode, and waits for its end. Within one event loop.

    Args:
        source: the source of episodes whose servers are asked.
        dark: runs while no server answers.
        patience: seconds that may be waited from now on.
        note: logs a line for the user.
        waiting: called after each question in vain, as a heartbeat.
        sleep: pauses, injected by tests.
    """

    def __init__(
        self,
        source: EnvironmentSource,
        dark: Stopwatch,
        *,
        patience: Callable[[], float],
        note: Callable[[str], None] = logger.warning,
        waiting: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._dark = dark
        self._patience = patience
        self._note = note
        self._waiting = waiting
        self._sleep = sleep
        self._asking = asyncio.Lock()
        self._away: list[str] = []
        self._pauses = growing_pauses()

    async def waited_out(self, server: str) -> bool:
        """After an `InfrastructureError` of `server`: whether to play the episode again for free.

        False where the server answers, so that the episode alone has failed, and where no
        server answers and patience is over. Otherwise True, once there is a server to play on.
        """
        if server not in self._source.servers:
            return False
        async with self._asking:
            if server not in self._away:
                await self._ask()
        if server not in self._away:
            return False
        while self._dark.runs:
            async with self._asking:
                if not self._dark.runs:
                    break
                if self._patience() <= 0:
                    return False
                await self._sleep(next(self._pauses))
                await self._ask()
                self._waiting()
        return True

    async def look_again(self) -> None:
        """Ask whether servers that were away are back, while others play."""
        async with self._asking:
            if self._away and not self._dark.runs:
                await self._ask()

    async def _ask(self) -> None:
        """Ask all servers, and log what has changed."""
        servers = self._source.servers
        errors = dict(
            zip(
                servers, await asyncio.gather(*map(self._source.health_error, servers)), strict=True
            )
        )
        before = self._away
        self._away = [url for url in servers if errors[url]]
        if len(self._away) == len(servers):
            if not self._dark.runs:
                self._begin_dark(errors)
            return
        if self._dark.runs:
            self._end_dark()
            return
        gone = [f"{url} ({errors[url]})" for url in self._away if url not in before]
        if gone:
            others = len(servers) - len(self._away)
            self._note(
                f"{_named(gone, 'does', 'do')} not answer: episodes go to the other {others} of "
                f"{len(servers)} environment servers"
            )
        back = [url for url in before if url not in self._away]
        if back:
            self._note(f"{_named(back, 'answers', 'answer')} again")

    def _begin_dark(self, errors: dict[str, str]) -> None:
        self._dark.start()
        self._pauses = growing_pauses()
        reasons = ", ".join(f"{url}: {reason}" for url, reason in errors.items())
        self._note(
            f"no environment server answers ({reasons}): waiting up to "
            f"{_duration(self._patience())} for one, to play its episodes again"
        )

    def _end_dark(self) -> None:
        seconds = self._dark.stop()
        there = [url for url in self._source.servers if url not in self._away]
        self._note(
            f"{_named(there, 'answers', 'answer')} again after {_duration(seconds)}: the episodes "
            "are played again"
        )


def _named(urls: list[str], singular: str, plural: str) -> str:
    noun, verb = ("server", singular) if len(urls) == 1 else ("servers", plural)
    return f"environment {noun} {', '.join(urls)} {verb}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(max(0.0, seconds))))
