"""Several trainer processes on this machine, started, stopped and judged as one program.

torchrun would do the same but for two things that the orchestrator lives on: the exit status of
the rank that failed, and a SIGTERM that is answered by a clean end however long that takes.

Invariants: when one rank fails, even to start, none is left behind; a signal reaches every rank
once, whenever it comes; ranks do not outlive the launcher.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence

from miner.lifeline import hold_lifeline, lifeline

POLL_S = 0.1
LAST_WORDS_S = 5.0
"""For the other ranks, once one has failed with its own status."""

CAUSE_S = 30.0
"""For the rank that knows the cause, as long as the others only report that they failed."""

GENERIC_STATUS = 1


def launch(count: int, command: Sequence[str]) -> int:
    """Run `command` as `count` ranks (RANK, WORLD_SIZE, MASTER_ADDR, ... in their environment).

    SIGTERM and SIGINT are forwarded to every rank. Returns 0 if all ranks end with 0, else the most
    informative of their exit statuses; -n means signal n.
    """
    world = lifeline() | {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")
        or str(max(1, (os.cpu_count() or 1) // count)),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []  # not handed on in the handler: some ranks may be still to be started
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    try:
        for index in range(count):
            names = {"RANK": str(index), "LOCAL_RANK": str(index)}
            # A separate session: a signal to the launcher's group would arrive twice.
            ranks.append(
                subprocess.Popen(command, env=os.environ | world | names, start_new_session=True)
            )
        return _wait(ranks, asked)
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # with what it started, if it is gone
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def launched() -> bool:
    """Return whether this process is a launcher's rank. If so, it ends with the launcher from now
    on."""
    return "RANK" in os.environ and hold_lifeline()


def _wait(ranks: Sequence[subprocess.Popen[bytes]], asked: list[int]) -> int:
    """Until all have ended, or one has failed and the others had time for their last words."""
    first_failure = math.inf
    while any(_running(ranks)):
        while asked:
            number = asked.pop(0)
            for rank in ranks:
                rank.send_signal(number)
        failures = _failures(ranks)
        now = time.monotonic()
        if failures:
            first_failure = min(first_failure, now)
        # A rank that lost its peers dies of that with 1, perhaps before the one with the cause.
        known = any(status != GENERIC_STATUS for status in failures)
        if now - first_failure > (LAST_WORDS_S if known else CAUSE_S):
            break
        time.sleep(POLL_S)
    return max(_failures(ranks), key=lambda status: (status != GENERIC_STATUS, status), default=0)


def _running(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[subprocess.Popen[bytes]]:
    return (rank for rank in ranks if rank.poll() is None)


def _failures(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    return [status for rank in ranks if (status := rank.poll())]


def free_port() -> int:
    """An unused TCP port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
