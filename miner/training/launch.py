"""Several trainer processes on this machine, started, stopped and judged as one program.

torchrun would do the same but for two things that the orchestrator lives on: the exit status of
the rank that failed, and a SIGTERM that is answered by a clean end however long that takes.

Invariants: when one rank fails, none is left behind; ranks do not outlive the launcher.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

PARENT = "MINER_LAUNCHER_PID"
POLL_S = 0.1
LAST_WORDS_S = 5.0
"""For the other ranks to fail by themselves, so that the first cause can be told from the rest."""

GENERIC_STATUS = 1
_PR_SET_PDEATHSIG = 1


def launch(count: int, command: Sequence[str]) -> int:
    """Run `command` as `count` ranks (RANK, WORLD_SIZE, MASTER_ADDR, ... in their environment).

    SIGTERM and SIGINT go on to every rank. Returns 0 if all ranks end with 0, else the most telling
    of their exit statuses; -n stands for signal n.
    """
    world = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")
        or str(max(1, (os.cpu_count() or 1) // count)),
    }
    ranks: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    for index in range(count):
        names = {"RANK": str(index), "LOCAL_RANK": str(index)}
        # A session of its own: a signal to the launcher's group would arrive twice.
        ranks.append(
            subprocess.Popen(command, env=os.environ | world | names, start_new_session=True)
        )
    try:
        return _wait(ranks)
    finally:
        for rank in _running(ranks):
            rank.kill()
            rank.wait()


def launched() -> bool:
    """Whether this process is a launcher's rank.

    If so, the kernel kills it from now on when the launcher dies (Linux; elsewhere it may linger).
    """
    parent = os.environ.get(PARENT)
    if parent is None:
        return False
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it died before the call
            sys.exit(GENERIC_STATUS)
    return True


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Until all have ended, or one has failed and had its last words."""
    while any(_running(ranks)) and not _failures(ranks):
        time.sleep(POLL_S)
    end = time.monotonic() + LAST_WORDS_S
    while any(_running(ranks)) and time.monotonic() < end:
        time.sleep(POLL_S)
    # A rank that lost its peers dies of that with 1, and may do so before the one with the cause.
    return max(_failures(ranks), key=lambda status: (status != GENERIC_STATUS, status), default=0)


def _running(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    return (rank for rank in ranks if rank.poll() is None)


def _failures(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    return [status for rank in ranks if (status := rank.poll())]


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
