"""Servers for tests, benchmarks and demos, in separate processes.

Invariant: when the context is left the server has ended, however the context was left.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mock_env_server.settings import Mode

_READY = re.compile(r"^mock environment server listening on (http://\S+) ", re.MULTILINE)
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 15.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process: its base URL, its process and what it has printed so far."""

    base_url: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running_server(mode: Mode = "faithful", *options: str) -> Iterator[RunningServer]:
    """A server in a separate process, on a free local port unless `options` name another.

    Args:
        mode: "faithful" or "correct".
        options: further command-line options of `python -m mock_env_server`.

    Raises: RuntimeError, with what the process printed, when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="mock-env-server-") as folder:
        log = Path(folder) / "log.txt"
        command = [sys.executable, "-m", "mock_env_server", "--port", "0", "--mode", mode, *options]
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        try:
            base_url = _wait_announced(log, process)
            yield RunningServer(base_url, process, log)
        finally:
            _stop(process)


def _wait_announced(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if announced := _READY.search(log.read_text(errors="replace")):
            return announced[1]
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    raise RuntimeError(
        f"the mock environment server did not start (exit status {process.poll()}); it printed:\n"
        f"{log.read_text(errors='replace')}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
