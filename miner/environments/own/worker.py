"""The thread that a user's class runs on, and the time limit of its methods.

Invariants:
* plain methods of all episodes run one after another on one thread, coroutines beside each other on
  its event loop; the caller's loop is never blocked;
* a method that does not return in time ends its call; one that blocks the thread ends all that wait
  behind it, and a new thread takes over, while `MOST_STUCK` at most have not come back;
* the seed and replies on which a method blocked are not played again.
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
"""Threads that may be left behind at once: each may keep a core busy to the end."""
MOST_REFUSED = 100
"""Episodes that are remembered because they blocked."""


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
        self._left: list[_Thread] = []
        self._refused: dict[tuple[object, ...], str] = {}
        self._cause = ""

    async def call(
        self, method: Callable[..., Any], *given: object, played: tuple[object, ...]
    ) -> Any:
        """Return what `method` returns or its awaitable results in.

        Args:
            played: the episode so far, its seed and the replies: one that blocked is refused.

        Raises: `OverdueError`, and what the method raises.
        """
        if cause := self._refused.get(played):
            raise OverdueError(f"{cause}: the same seed and replies are not played again")
        self._left = [thread for thread in self._left if thread.is_alive()]
        if len(self._left) >= MOST_STUCK:
            times = f"{len(self._left)} times"
            raise OverdueError(f"{self._cause}, {times}: nothing is called until one returns")
        if self._thread is None or not self._thread.is_alive():
            self._thread = _Thread(self._seconds / 10)
        thread = self._thread
        asked = self._run(thread, method, given, played)
        future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, thread.loop))
        try:
            longest = 1.5 * self._seconds  # a coroutine ends by its own limit before
            while not (await asyncio.wait({future}, timeout=thread.patience(longest)))[0]:
                if thread.silence() >= longest:
                    raise self._blocked(thread)
            if future.cancelled():  # with the thread, which another call had blocked
                raise OverdueError(self._cause or f"the thread of {self._kind.__name__} has ended")
            return future.result()
        finally:
            future.cancel()

    def close(self) -> None:
        """Let the thread end (idempotent)."""
        if self._thread is not None:
            self._thread.left = True
            self._thread = None

    async def _run(
        self,
        thread: _Thread,
        method: Callable[..., Any],
        given: tuple[object, ...],
        played: tuple[object, ...],
    ) -> Any:
        if thread.left:  # it has come back, but this call's episode is lost
            raise asyncio.CancelledError
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
        except (Exception, GeneratorExit):
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise  # by the caller
            # the class's own: it would end the thread, all episodes, or the run
            found = RuntimeError(f"{type(error).__name__} {error}".rstrip())
            raise found.with_traceback(error.__traceback__) from None
        finally:
            thread.moved = time.monotonic()

    def _blocked(self, thread: _Thread) -> OverdueError:
        if not thread.left:
            thread.left = True
            self._thread = None
            self._left.append(thread)
            where, played = self._where(thread)
            self._cause = f"{where} has not returned for {self._seconds:g} s"
            if played:
                self._refused[played] = self._cause
            if len(self._refused) > MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
        return OverdueError(self._cause)

    def _where(self, thread: _Thread) -> tuple[str, tuple[object, ...]]:
        """The method that blocks `thread`, with its line, and the episode, () if unknown."""
        where = ""
        frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
        while frame is not None and frame.f_code is not Worker._run.__code__:
            owner = frame.f_locals.get("self")
            if not where and isinstance(owner, self._kind):
                code = frame.f_code
                place = f"{Path(code.co_filename).name}, line {frame.f_lineno}"
                where = f"{type(owner).__name__}.{code.co_name} ({place})"
            frame = frame.f_back
        return where or self._kind.__name__, frame.f_locals["played"] if frame else ()


class _Thread(threading.Thread):
    """An event loop on a thread that does not keep the process alive.

    Args:
        pause: seconds between two signs of life of an idle thread.

    Attributes:
        moved: last begin or end of a method, or sign of life, in monotonic seconds.
        left: true if it is to end, once no method blocks it.
    """

    def __init__(self, pause: float) -> None:
        super().__init__(name="own environment", daemon=True)
        self.loop = asyncio.new_event_loop()
        self.moved = time.monotonic()
        self.left = False
        self._pause = pause
        self.start()

    def silence(self) -> float:
        """Seconds since it moved."""
        return time.monotonic() - self.moved

    def patience(self, longest: float) -> float:
        """Seconds until its silence may be `longest`; enough for a sign of life."""
        return max(longest - self.silence(), 2 * self._pause)

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._beat())

    async def _beat(self) -> None:
        while not self.left:
            self.moved = time.monotonic()
            await asyncio.sleep(self._pause)
