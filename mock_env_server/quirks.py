"""The real server's weaknesses, each behind a switch, for testing clients that must survive them.

Invariant: with no quirk on, no request can stop another request from being answered.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from enum import StrEnum

DEADLOCK_AT = 100
"""Concurrent /evaluate calls at which the real server was seen to lock up (110 did, 60 did not)."""


class Quirk(StrEnum):
    """One weakness of the real server."""

    BLOCK = "block"
    DEADLOCK = "deadlock"
    STRAGGLERS = "stragglers"


QUIRK_HELP = {
    Quirk.BLOCK: "MCTS opponents think on the event loop: everything, /health too, waits for them",
    Quirk.DEADLOCK: f"{DEADLOCK_AT} concurrent /evaluate calls hang /evaluate for good",
    Quirk.STRAGGLERS: "after its time-out an /evaluate keeps sending chat requests unseen",
}


def parse_quirks(names: Collection[str]) -> frozenset[Quirk]:
    """Quirks named in `names`; "all" names every one. Raises: ValueError for others."""
    known = ", ".join(Quirk)
    if unknown := set(names) - {*Quirk, "all"}:
        raise ValueError(f"unknown quirk {min(unknown)!r}: choose from {known}, or all")
    return frozenset(Quirk) if "all" in names else frozenset(map(Quirk, names))


class EvaluateGate:
    """Counts the /evaluate calls in progress; locks for good at `DEADLOCK_AT` if so set."""

    def __init__(self, *, deadlocks: bool) -> None:
        self._deadlocks = deadlocks
        self._in_progress = 0
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Around one call: once the gate has locked, nothing gets in and nothing gets out."""
        self._in_progress += 1
        try:
            if self._deadlocks and self._in_progress >= DEADLOCK_AT:
                self._open.clear()
            await self.passage()
            yield
            await self.passage()
        finally:
            self._in_progress -= 1

    async def passage(self) -> None:
        """Returns at once, or never. Every chat turn comes by here too."""
        await self._open.wait()
