"""Several trainer processes on this machine, started, stopped and judged as one program.

torchrun would do the same but for two things that the orchestrator lives on: the exit status of
the rank that failed, and a SIGTERM that is answered by a clean end however long that takes.

Invariants: when one rank fails, even to start, none is left behind; a signal reaches every rank
once, whenever it comes; ranks do not outlive the launcher; they begin once all is prepared.
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from miner.config.control_groups import usable_cpus
from miner.lifeline import ORPHAN_STATUS, hold_lifeline, lifeline

POLL_S = 0.1
LAST_WORDS_S = 5.0
"""For the other ranks, once one has failed with its own status."""

CAUSE_S = 30.0
"""For the rank that knows the cause, as long as the others only report that they failed."""

GENERIC_STATUS = 1
SIGNALS = (signal.SIGTERM, signal.SIGINT)

PREPARED = "MINER_PREPARED_FD"
"""Variable with a file descriptor that has a byte for each rank once all is prepared."""


def launch(count: int, command: Sequence[str], prepare: Callable[[], None] = lambda: None) -> int:
    """Run `command` as `count` ranks (RANK, WORLD_SIZE, MASTER_ADDR, ... in their environment).

    `prepare` is called while they start, which takes as long; they wait for it in
    `wait_until_prepared`. What it raises ends them. SIGTERM and SIGINT end it as they would without
    ranks, else they are forwarded to every rank. Returns 0 if all ranks end with 0, else the most
    informative of their exit statuses; -n means signal n.
    """
    world = lifeline() | {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cpus() // count)),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []  # not handed on in the handler: some ranks may be still to be started
    before = _handled(dict.fromkeys(SIGNALS, lambda number, _: asked.append(number)))
    prepared, preparing = os.pipe()
    try:
        for index in range(count):
            names = {"RANK": str(index), "LOCAL_RANK": str(index), PREPARED: str(prepared)}
            # A separate session: a signal to the launcher's group would arrive twice.
            ranks.append(
                subprocess.Popen(
                    command,
                    env=os.environ | world | names,
                    start_new_session=True,
                    pass_fds=(prepared,),
                )
            )
        if not asked:
            handlers = _handled(before)  # a request to end ends the preparation at once
            prepare()
            _handled(handlers)
            os.write(preparing, bytes(count))
        return _wait(ranks, asked)
    finally:
        os.close(preparing)
        os.close(prepared)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # with what it started, if it is gone
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _handled(handlers: Mapping[int, Any]) -> dict[int, Any]:
    """Take these handlers of signals; returns those before."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}


def wait_until_prepared() -> None:
    """In a rank: return once the launcher has prepared the run; exit where it has ended."""
    if not os.read(int(os.environ[PREPARED]), 1):
        sys.exit(ORPHAN_STATUS)


def launched() -> bool:
    """Return whether this process is a launcher's rank. If so, it ends with the launcher from now
    on."""
    return "RANK" in os.environ and hold_lifeline()


def world_size() -> int:
    """Number of trainer processes that share this run, this one among them."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


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


_kept_ports: list[socket.socket] = []


def free_port() -> int:
    """An unused TCP port of this machine, kept for one server until this process ends.

    A bound socket that does not listen keeps the kernel from giving the port to another program, as
    it would in the seconds that a server takes to start. The server sets SO_REUSEADDR, as torch's
    TCPStore, uvicorn, asyncio and vLLM do.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept_ports.append(kept)
    port: int = kept.getsockname()[1]
    return port
