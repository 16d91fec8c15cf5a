"""SIGTERM ends a command as Ctrl-C does, and as before once the command is over."""

import asyncio
import os
import signal

import pytest

from miner.cli.stoppable import run_stoppable


async def _until_told_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)


async def _keeps_what_it_has() -> str:
    try:
        await _until_told_to_end()
    except asyncio.CancelledError:
        return "half"
    return "all"


def test_what_was_done_before_sigterm_is_kept() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_stoppable(_keeps_what_it_has()) == "half"
    assert signal.getsignal(signal.SIGTERM) == before


def test_where_nothing_is_kept_sigterm_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_stoppable(_until_told_to_end())
