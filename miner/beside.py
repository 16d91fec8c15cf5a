"""Moves that take long, beside the event loop.

Invariants:
* a move that nobody waits for any more ends at its next `check_wanted`;
* one that does not ask, such as a function of the user's, delays neither Ctrl-C nor the exit.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_PLACES = threading.Semaphore(min(32, (os.cpu_count() or 1) + 4))
"""As many moves at once as asyncio's own threads, which are waited for at exit."""

_abandoned: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("abandoned")


class AbandonedError(Exception):
    """Nobody waits for this move any more."""


def check_wanted() -> None:
    """Raise `AbandonedError` if the awaiting task has been cancelled."""
    abandoned = _abandoned.get(None)
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError


async def beside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, in a thread that is left behind where the task is cancelled."""
    context, abandoned, done = contextvars.copy_context(), threading.Event(), Future[T]()
    context.run(_abandoned.set, abandoned)

    def work() -> None:
        with _PLACES:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(context.run(function, *args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

    threading.Thread(target=work, name="move", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    finally:
        abandoned.set()
