"""An event loop on a thread of its own, for synchronous callers such as a trainer.

Invariant: the loop lives as long as the object, so that HTTP connections and servers that belong to
it survive from one call to the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class Running(Generic[T]):
    """A coroutine for a loop of another thread, on its way once it has begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._tasks: list[asyncio.Task[T]] = []
        self._begun = False
        self._over = threading.Event()

    def begin(self) -> Self:
        """Let it run, if it does not yet."""
        if not self._begun:
            self._begun = True
            self._loop.call_soon_threadsafe(self._start)
        return self

    def result(self) -> T:
        """Begin, and wait for its result, or raise its error.

        If the caller is interrupted (KeyboardInterrupt, a signal handler's exception), the
        coroutine is cancelled and has cleaned up before the interrupt goes on.
        """
        try:
            self.begin()
            self._over.wait()
        except BaseException:
            self.cancel()
            raise
        return self._tasks[0].result()

    def cancel(self) -> None:
        """Cancel it, unless it is over, and wait until it has cleaned up."""
        self._loop.call_soon_threadsafe(self._give_up)
        self._over.wait()

    def _start(self) -> None:
        self._tasks.append(self._loop.create_task(self._coroutine))
        self._tasks[0].add_done_callback(lambda _: self._over.set())

    def _give_up(self) -> None:
        if self._tasks:
            self._tasks[0].cancel()
        else:  # the interrupt came before the loop was told to start
            self._coroutine.close()
            self._over.set()


class BackgroundLoop:
    """Runs coroutines to completion on behalf of threads that have no event loop."""

    def __init__(self, name: str = "rollout") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it has not been closed."""
        return not self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` and return its result or raise its error; see `Running.result`."""
        return self._running(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Have `coroutine` run while the caller does something else."""
        return self._running(coroutine).begin()

    def _running(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("BackgroundLoop.run would wait for itself: await the coroutine")
        return Running(self._loop, coroutine)

    def close(self) -> None:
        """Cancel what still runs, let it clean up, and end the thread (idempotent)."""
        if self._loop.is_closed():
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
