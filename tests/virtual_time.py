"""Time that costs a test nothing: a loop whose clock jumps to what is due next, and a clock that
only the test moves."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """Seconds that pass where a test adds some to `now`."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Leaping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for nothing; what it should have waited is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)  # for another thread, or another process
        if not ready and timeout:
            self.waited += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that do nothing but compute and pause."""

    def __init__(self) -> None:
        self._leaping = _Leaping()
        super().__init__(self._leaping)

    def time(self) -> float:
        return self._leaping.waited


def run_paused(coroutine: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result, and the seconds that it would have paused."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        loop.close()
