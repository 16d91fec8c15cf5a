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
    """A coroutine on its way in a loop of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._tasks: list[asyncio.Task[T]] = []
        self._over = threading.Event()

        def start() -> None:
            self._tasks.append(loop.create_task(coroutine))
            self._tasks[0].add_done_callback(lambda _: self._over.set())

        loop.call_soon_threadsafe(start)

    def result(self) -> T:
        """Wait for its result, or raise its error.

        If the caller is interrupted (KeyboardInterrupt, a signal handler's exception), the
        coroutine is cancelled and has cleaned up before the interrupt goes on.
        """
        try:
            self._over.wait()
        except BaseException:
            self.cancel()
            raise
        return self._tasks[0].result()

    def cancel(self) -> None:
        """Cancel it, unless it is over, and wait until it has cleaned up."""
        self._loop.call_soon_threadsafe(lambda: self._tasks[0].cancel())
        self._over.wait()


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
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Running[T]:
        """Have `coroutine` run while the caller does something else."""
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
