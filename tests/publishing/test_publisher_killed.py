"""SIGKILL at any instant leaves a loadable folder, and the next start leaves no litter."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import miner

SCRIPT = Path(__file__).with_name("killed_publisher.py")
ROOT = Path(miner.__file__).parent.parent


@pytest.mark.parametrize("mode", ["atomic", "fallback"])
def test_killed_at_every_file_operation(
    tmp_path: Path, base_model: Path, trained_model: Path, mode: str
) -> None:
    output = tmp_path / "out" / "model"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, (output, mode, base_model, trained_model))],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    seen = json.loads(done.stdout)
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
