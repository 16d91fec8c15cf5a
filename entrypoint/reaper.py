"""PID 1's duties: run one program, forward the request to end, reap every process left behind.

Invariants: no zombie stays; SIGTERM reaches the program once; when `run` returns, no descendant of
this process is alive. It works as PID 1 and, as a child subreaper, as any other process.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_MAX_SWEEPS = 100


@dataclass(frozen=True)
class Ended:
    """End of the program.

    Attributes:
        exit_status: its own, or minus the signal that killed it.
        asked: name of the signal that asked this process to end, None if none came.
        overdue: true if the program was stopped for running past `stop_at`.
    """

    exit_status: int
    asked: str | None
    overdue: bool


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stop_at: float,
    kill_after: float,
    asked_before: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `command` to its end.

    Args:
        stop_at: Unix time at which it gets SIGTERM if it still runs.
        kill_after: seconds between any SIGTERM and SIGKILL.
        asked_before: true if a handler has taken SIGTERM before this waits for it.
    """
    _become_subreaper()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        if asked_before():
            os.kill(os.getpid(), signal.SIGTERM)  # it is blocked: `_wait` takes it
        child = os.posix_spawn(
            command[0], list(command), environment, setpgroup=0, setsigmask=(), setsigdef=_WATCHED
        )
        ended = _wait(child, stop_at, kill_after)
        _end_orphans()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return ended


def _wait(child: int, stop_at: float, kill_after: float) -> Ended:
    asked: str | None = None
    overdue = False
    kill_at = float("inf")
    while True:
        status = _reap().get(child)
        if status is not None:
            return Ended(status, asked, overdue)
        limit = kill_at if asked or overdue else stop_at
        received = signal.sigtimedwait(_WATCHED, max(0.0, min(limit - time.time(), 3600.0)))
        now = time.time()
        if received is not None and received.si_signo != signal.SIGCHLD and not asked:
            asked = signal.Signals(received.si_signo).name
        elif now >= kill_at:
            os.kill(child, signal.SIGKILL)
            kill_at = float("inf")
            continue
        elif now >= stop_at and not asked and not overdue:
            overdue = True
        else:
            continue
        os.kill(child, signal.SIGTERM)
        kill_at = min(kill_at, now + kill_after)


def _reap() -> dict[int, int]:
    """Exit statuses of all children that have ended, by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def _end_orphans() -> None:
    """Kill and reap what the program left behind: a dead parent's children become ours."""
    for _ in range(_MAX_SWEEPS):
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
        _reap()


def _children() -> list[int]:
    own = str(os.getpid())
    return [
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if _parent_of(stat) == own
    ]


def _parent_of(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[1]
    except OSError:  # it ended meanwhile
        return ""


def _become_subreaper() -> None:
    if os.getpid() != 1:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
