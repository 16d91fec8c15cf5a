"""Nobody reads on (a closed pipe, a closed terminal): the work goes on, or ends with all it has."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from miner.config.statuses import TrainerStatus

LEAGUE = [sys.executable, "-m", "miner", "league", "a=random", "b=random", "--games", "goofspiel"]


def _league(folder: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((folder / "league.json").read_text())
    return read


def test_a_reader_that_goes_away_ends_no_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*LEAGUE, "--pairs", "2", "--out", tmp_path], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert _league(tmp_path)["matches"]


@pytest.mark.parametrize("command", ["settings", "--help"])
def test_printed_text_may_be_cut_off(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    whole = [sys.executable, "-m", "miner", command]
    done = subprocess.run(whole, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_terminal_ends_a_command_as_sigterm_does(tmp_path: Path) -> None:
    mine, terminal = os.openpty()
    command = [*LEAGUE, "--pairs", "100000", "--minutes", "1000", "--out", tmp_path]
    # under nohup it is ignored, by children too
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    running = subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE)
    signal.signal(signal.SIGHUP, before)
    os.close(terminal)
    assert os.read(mine, 1)  # it has begun
    os.close(mine)
    time.sleep(1)  # it writes on, before it is told
    running.send_signal(signal.SIGHUP)
    _, said = running.communicate(timeout=120)
    assert (running.returncode, said) == (TrainerStatus.INTERRUPTED, b"")
    assert _league(tmp_path)["matches"]
