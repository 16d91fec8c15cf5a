"""The background loop from a synchronous caller's view."""

import asyncio
import signal
import threading

import pytest

from miner.background_loop import BackgroundLoop


async def running_loop():
    return asyncio.get_running_loop()


def test_calls_share_one_loop(loop):
    assert loop.run(running_loop()) is loop.run(running_loop())


def test_errors_reach_the_caller(loop):
    async def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        loop.run(fail())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_within_the_loop_is_an_error_of_the_call(monkeypatch):
    monkeypatch.setattr("miner.background_loop._LOOK_S", 0.01)

    async def leave():
        raise SystemExit(3)

    with (
        BackgroundLoop() as loop,
        pytest.raises(RuntimeError, match="something in it has exited"),
    ):
        loop.run(leave())


@pytest.mark.usefixtures("interruptible")
def test_interrupt_waits_for_the_cleanup(loop):
    cleaned = []

    async def interrupted():
        try:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted())
    assert cleaned == [True]
    assert loop.run(running_loop()).is_running()


def test_an_interrupt_between_start_and_wait_leaves_nothing_behind(loop, monkeypatch):
    tell, told = loop._loop.call_soon_threadsafe, []

    def interrupted_once(callback, *arguments):
        tell(callback, *arguments)
        told.append(callback)
        if len(told) == 1:
            raise KeyboardInterrupt

    async def number_of_tasks():
        return len(asyncio.all_tasks())

    monkeypatch.setattr(loop._loop, "call_soon_threadsafe", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        loop.run(asyncio.Event().wait())
    assert loop.run(number_of_tasks()) == 1


def test_run_from_within_the_loop_is_refused(loop):
    async def nested():
        loop.run(running_loop())

    with pytest.raises(RuntimeError, match="await the coroutine"):
        loop.run(nested())


def test_close_lets_what_still_runs_clean_up():
    loop, cleaned = BackgroundLoop(), []

    async def stay():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def leave_behind():
        task = asyncio.create_task(stay())
        await asyncio.sleep(0)
        return task

    task = loop.run(leave_behind())
    loop.close()
    loop.close()
    assert task.cancelled()
    assert cleaned == [True]
