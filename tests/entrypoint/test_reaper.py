"""PID 1's trade, as a child subreaper and as the real PID 1 of a namespace."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNNER = """
import sys, time
from entrypoint.reaper import run
stop_in, kill_after = float(sys.argv[1]), float(sys.argv[2])
asked = sys.argv[3] == "asked"
times = {"stop_at": time.time() + stop_in, "kill_after": kill_after}
print(run(sys.argv[4:], {}, **times, asked_before=lambda: asked))
"""
SAY_READY_AND_SLEEP = "import signal; print('ready', flush=True); signal.pause()"
IGNORE_SIGTERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); signal.pause(); signal.pause()"
)


def start(
    *code: str,
    stop_in: float = 60,
    kill_after: float = 60,
    asked: bool = False,
    wrap: tuple[str, ...] = (),
) -> subprocess.Popen[str]:
    times = str(stop_in), str(kill_after), "asked" if asked else ""
    runner = [sys.executable, "-u", "-c", RUNNER, *times]
    return subprocess.Popen(
        [*wrap, *runner, sys.executable, "-c", *code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    return output.strip().splitlines()[-1]


def test_exit_status_is_passed_on() -> None:
    ended = result(start("raise SystemExit(5)"))
    assert ended == "Ended(exit_status=5, asked=None, overdue=False)"


def test_sigterm_is_passed_on() -> None:
    process = start(SAY_READY_AND_SLEEP)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert result(process) == "Ended(exit_status=-15, asked='SIGTERM', overdue=False)"


def test_program_that_ignores_sigterm_is_killed() -> None:
    process = start(IGNORE_SIGTERM, kill_after=0.2)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert result(process) == "Ended(exit_status=-9, asked='SIGINT', overdue=False)"


def test_program_that_runs_too_long_is_stopped() -> None:
    process = start(SAY_READY_AND_SLEEP, stop_in=0.5)
    assert result(process) == "Ended(exit_status=-15, asked=None, overdue=True)"


def test_signal_masks_are_not_inherited() -> None:
    code = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    process = start(code)
    output, _ = process.communicate()
    assert output.splitlines()[0] == "set()"


def test_as_pid_1_it_is_stopped_by_sigterm_and_reaps() -> None:
    """PID 1 has no default handlers: a signal it does not handle is lost."""
    wrap = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    allowed = (
        shutil.which("unshare")
        and not subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode
    )
    if not allowed:
        pytest.skip("PID namespaces cannot be made here (unshare)")
    inside = (
        "import os, signal, time; print(os.getppid(), flush=True);"
        "os.kill(1, signal.SIGTERM); signal.pause()"
    )
    process = start(inside, wrap=wrap)
    output, _ = process.communicate()
    assert output.splitlines() == ["1", "Ended(exit_status=-15, asked='SIGTERM', overdue=False)"]


def test_sigterm_from_before_the_program_was_there_is_passed_on() -> None:
    process = start(SAY_READY_AND_SLEEP, asked=True)
    assert result(process) == "Ended(exit_status=-15, asked='SIGTERM', overdue=False)"
