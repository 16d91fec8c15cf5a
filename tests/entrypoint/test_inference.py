"""A server of several processes is kept together: none outlives the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SERVER = """
import pathlib, signal, subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                          start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(engine.pid))
print("ready", flush=True)
signal.pause()
"""


def start(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    wrapper = (sys.executable, "-m", "entrypoint.inference", "--kill-after", "1000")
    return subprocess.Popen(
        [*wrapper, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("whom", ["its first process", "all of it, by SIGTERM"])
def test_what_the_server_started_ends_with_it(tmp_path: Path, whom: str) -> None:
    process = start(tmp_path, sys.executable, "-c", SERVER, str(tmp_path / "engine"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    engine = int((tmp_path / "engine").read_text())
    [server] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if whom == "its first process":
        os.kill(int(server), signal.SIGKILL)
        expected = 128 + signal.SIGKILL
    else:
        process.terminate()
        expected = 128 + signal.SIGTERM
    assert process.wait() == expected
    assert not Path(f"/proc/{engine}").exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = start(tmp_path, "vllm-of-nowhere", "serve", "model")
    output, _ = process.communicate()
    assert process.returncode == 127
    assert "there is no program 'vllm-of-nowhere' on PATH" in output
