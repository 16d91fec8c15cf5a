"""The thread that a user's class runs on, and the time limit of its methods.

Invariants:
* plain methods of all episodes run one after another on one thread, coroutines beside each other on
  its event loop; the caller's loop is never blocked;
* a method that does not return in time ends its call; one that blocks the thread ends all that wait
  behind it, and a new thread takes over, `MOST_STUCK` times at most.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

MOST_STUCK = 3
"""Threads that may be left behind: each may keep a core busy to the end."""


class OverdueError(Exception):
    """A method did not return in time; the message names it and the line."""


class Worker:
    """Calls methods of `kind` and its objects.

    Args:
        seconds: longest time that one may take.
    """

    def __init__(self, kind: type, seconds: float) -> None:
        self._kind = kind
        self._seconds = seconds
        self._thread: _Thread | None = None
        self._stuck = 0
        self._cause = ""

    async def call(self, method: Callable[..., Any], *given: object) -> Any:
        """Return what `method` returns or its awaitable results in.

        Raises: `OverdueError`, and what the method raises.
        """
        if self._stuck >= MOST_STUCK:
            raise OverdueError(f"{self._cause}, {self._stuck} times: it is not called again")
        if self._thread is None:
            self._thread = _Thread()
        thread = self._thread
        running = asyncio.run_coroutine_threadsafe(self._run(thread, method, given), thread.loop)
        future = asyncio.wrap_future(running)
        try:
            silence = 1.5 * self._seconds  # a coroutine ends by its own limit before
            while not (await asyncio.wait({future}, timeout=silence))[0]:
                if time.monotonic() - thread.moved >= silence:
                    raise self._blocked(thread)
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Let the thread end (idempotent)."""
        if self._thread is not None:
            self._thread.loop.call_soon_threadsafe(self._thread.loop.stop)
            self._thread = None

    async def _run(
        self, thread: _Thread, method: Callable[..., Any], given: tuple[object, ...]
    ) -> Any:
        thread.moved = time.monotonic()
        limit = asyncio.timeout(self._seconds)
        try:
            result = method(*given)
            if not inspect.isawaitable(result):
                return result
            async with limit:
                return await result
        except TimeoutError:
            if not limit.expired():
                raise  # the class's own
            name = f"{self._kind.__name__}.{method.__name__}"
            raise OverdueError(f"{name} has not returned for {self._seconds:g} s") from None
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise  # by the caller
            # the class's own: it would end the thread, or all episodes
            found = RuntimeError(f"{type(error).__name__} {error}".rstrip())
            raise found.with_traceback(error.__traceback__) from None
        finally:
            thread.moved = time.monotonic()

    def _blocked(self, thread: _Thread) -> OverdueError:
        if self._thread is thread:
            self._thread = None
            self._stuck += 1
            self._cause = f"{self._where(thread)} has not returned for {self._seconds:g} s"
        return OverdueError(self._cause)

    def _where(self, thread: _Thread) -> str:
        """Name the method that blocks `thread`, and its line."""
        frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
        while frame is not None:
            if isinstance(frame.f_locals.get("self"), self._kind):
                code = frame.f_code
                place = f"{Path(code.co_filename).name}, line {frame.f_lineno}"
                return f"{self._kind.__name__}.{code.co_name} ({place})"
            frame = frame.f_back
        return self._kind.__name__


class _Thread(threading.Thread):
    """An event loop on a thread that does not keep the process alive.

    Attributes:
        moved: last begin or end of a method, in monotonic seconds.
    """

    def __init__(self) -> None:
        super().__init__(name="own environment", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.moved = time.monotonic()
        self.start()

    def run(self) -> None:
        self.loop.run_forever()
        self.loop.close()
