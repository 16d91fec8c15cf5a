"""Commands that keep what they have done when they are asked to end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_stoppable(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in which SIGTERM cancels the coroutine, as SIGINT (Ctrl-C) does.

    The caller's own answer to SIGTERM is back in its place afterwards.

    Raises: what the coroutine raises, KeyboardInterrupt if it did not survive being cancelled.
    """

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await coroutine

    before = signal.getsignal(signal.SIGTERM)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGTERM, before)
