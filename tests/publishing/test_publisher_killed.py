"""SIGKILL at any instant leaves a loadable folder, and the next start leaves no litter."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import miner
from miner.publishing.publisher import Publisher
from miner.publishing.verify import verify_model

SCRIPT = Path(__file__).with_name("killed_publisher.py")
ROOT = Path(miner.__file__).parent.parent
ROUNDS = 8  # what a kill between two file operations leaves, the other test sees of them all


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("mode", ["atomic", "fallback"])
def test_killed_at_random_moments(
    tmp_path: Path, base_model: Path, trained_model: Path, mode: str
) -> None:
    output = tmp_path / "out" / "model"
    models = [(m / "model.safetensors").read_bytes() for m in (base_model, trained_model)]
    moments = random.Random(7)
    for _ in range(ROUNDS):
        child = start("loop", output, mode, base_model, trained_model)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        threading.Event().wait(moments.uniform(0.0, 0.1))  # the moment is the test's input
        child.kill()
        child.communicate()
        if mode == "fallback":
            Publisher(output, full_check=False)
        verify_model(output, load=True)
        assert (output / "model.safetensors").read_bytes() in models
    Publisher(output, full_check=False)
    assert sorted(path.name for path in output.parent.iterdir()) == [".model.lock", "model"]


@pytest.mark.parametrize("mode", ["atomic", "fallback"])
def test_killed_at_every_file_operation(
    tmp_path: Path, base_model: Path, trained_model: Path, mode: str
) -> None:
    output = tmp_path / "out" / "model"
    child = start("every-instant", output, mode, base_model, trained_model)
    seen = json.loads(child.communicate()[0])
    assert len(seen) > 20
    assert all(instant["siblings"] == [".model.lock"] for instant in seen)

    reopened = [instant["reopened"] for instant in seen]
    assert reopened == sorted(reopened)
    assert set(reopened) == {0, 1}

    at_kill = [instant["at_kill"] for instant in seen]
    runs = [step for step, _ in itertools.groupby(at_kill)]
    if mode == "atomic":
        assert runs == [0, 1]
        assert at_kill == reopened
    else:  # the one window of the two renames, repaired by the next start
        assert runs == [0, None, 1]
        assert at_kill.count(None) == 1
