"""Environment servers that go away: waited for, so that their episodes can be played again.

Invariants:
* an outage takes no attempt from an episode as long as patience lasts;
* while no server answers, one coroutine at a time asks, with growing pauses, however many wait;
* an outage is one line when it begins and one when it is over, whatever it met.
"""

from __future__ import annotations

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
"""Of one episode: whatever takes its server away that often may well be the episode."""


def growing_pauses() -> Iterator[float]:
    """1, 2, 4, ... seconds, then the longest pause again and again."""
    return (min(2.0**number, LONGEST_PAUSE_S) for number in itertools.count())


class Outages:
    """Tells an outage from an episode that failed, and waits for its end. Within one event loop.

    Args:
        source: the source of episodes whose servers are asked.
        patience: seconds that may be waited from now on.
        say: shows a line to a person.
        waiting: called after each question in vain, as a sign of life.
        sleep: pauses, injected by tests.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        source: EnvironmentSource,
        *,
        patience: Callable[[], float],
        say: Callable[[str], None] = logger.warning,
        waiting: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._patience = patience
        self._say = say
        self._waiting = waiting
        self._sleep = sleep
        self._clock = clock
        self._asking = asyncio.Lock()
        self._away: dict[str, float] = {}
        self._dark_since: float | None = None
        self._dark_seconds = 0.0
        self._pauses = growing_pauses()

    @property
    def dark_seconds(self) -> float:
        """For how long no server has answered, over all outages."""
        since = self._dark_since  # the loop's thread may end it meanwhile
        return self._dark_seconds + (0.0 if since is None else self._clock() - since)

    async def waited_out(self, server: str) -> bool:
        """After an `InfrastructureError` of `server`: whether to play the episode again for free.

        False where the server answers, so that the episode has failed by itself, and where no
        server answers and patience is over. Otherwise True, once there is a server to play on.
        """
        if server not in self._source.servers:
            return False
        async with self._asking:
            if server not in self._away:
                await self._ask()
        if server not in self._away:
            return False
        while self._dark_since is not None:
            async with self._asking:
                if self._dark_since is None:
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
            if self._away and self._dark_since is None:
                await self._ask()

    async def _ask(self) -> None:
        """Ask all servers, and tell what has changed."""
        servers = self._source.servers
        said = dict(
            zip(
                servers, await asyncio.gather(*map(self._source.health_error, servers)), strict=True
            )
        )
        now, before = self._clock(), self._away
        self._away = {url: before.get(url, now) for url in servers if said[url]}
        if len(self._away) == len(servers):
            if self._dark_since is None:
                self._begin_dark(said)
            return
        if self._dark_since is not None:
            self._end_dark()
            return
        gone = [f"{url} ({said[url]})" for url in self._away if url not in before]
        if gone:
            others = len(servers) - len(self._away)
            self._say(
                f"{_named(gone, 'does', 'do')} not answer: episodes go to the other {others} of "
                f"{len(servers)} environment servers"
            )
        back = [url for url in before if url not in self._away]
        if back:
            self._say(f"{_named(back, 'answers', 'answer')} again")

    def _begin_dark(self, said: dict[str, str]) -> None:
        self._dark_since, self._pauses = self._clock(), growing_pauses()
        reasons = ", ".join(f"{url}: {reason}" for url, reason in said.items())
        self._say(
            f"no environment server answers ({reasons}): waiting up to "
            f"{_duration(self._patience())} for one, to play its episodes again"
        )

    def _end_dark(self) -> None:
        assert self._dark_since is not None
        seconds = self._clock() - self._dark_since
        self._dark_since = None  # before the sum: a reader must not count it twice
        self._dark_seconds += seconds
        there = [url for url in self._source.servers if url not in self._away]
        self._say(
            f"{_named(there, 'answers', 'answer')} again after {_duration(seconds)}: the episodes "
            "are played again"
        )


def _named(urls: list[str], singular: str, plural: str) -> str:
    noun, verb = ("server", singular) if len(urls) == 1 else ("servers", plural)
    return f"environment {noun} {', '.join(urls)} {verb}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(max(0.0, seconds))))
