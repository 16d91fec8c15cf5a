"""An event loop on a dedicated thread, for synchronous callers such as a trainer.

Invariant: the loop lives as long as the object, so that HTTP connections and servers that belong to
it survive from one call to the next.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")
_POLL_S = 0.1
_LOOK_S = 1.0


class BackgroundLoop:
    """Runs coroutines to completion on behalf of threads that have no event loop."""

    def __init__(self, name: str = "rollout") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether it has not been closed."""
        return not self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` and return its result or raise its error.

        If the caller is interrupted (KeyboardInterrupt, a signal handler's exception), the
        coroutine is cancelled and has cleaned up before the interrupt is raised again.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("BackgroundLoop.run would wait for itself: await the coroutine")
        tasks: list[asyncio.Task[T]] = []
        over = threading.Event()

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(lambda _: over.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before the loop was asked to start it
                coroutine.close()
                over.set()

        def wait() -> None:
            while not over.wait(_LOOK_S):
                if not self._thread.is_alive():  # SystemExit in a coroutine ends a loop
                    raise RuntimeError("the event loop has ended: something in it has exited")

        try:
            self._loop.call_soon_threadsafe(start)
            wait()
        except BaseException:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(cancel)
                wait()
            raise
        return tasks[0].result()

    def close(self) -> None:
        """Cancel what still runs, let it clean up, and end the thread (idempotent)."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self.run(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


async def unless(stopped: Callable[[], bool], work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or cancel it and return None as soon as `stopped`."""
    task = asyncio.create_task(work)
    try:
        while not stopped():
            if (await asyncio.wait([task], timeout=_POLL_S))[0]:
                return task.result()
        return None
    finally:
        task.cancel()
        await asyncio.wait([task])


def take_back_cancellation() -> None:
    """Let the current task continue after a `CancelledError`: it answers an interrupt itself."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
