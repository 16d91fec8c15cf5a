"""A signal that reaches one of two ranks ends and saves both, after the same step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from miner.publishing.verify import verify_model
from tests.training.in_process import TINY, working_in

pytestmark = pytest.mark.long


def process_of_rank(rank: int, parent: int) -> int:
    """The child of `parent` that was started as this rank."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables:
            return int(child)
    raise AssertionError(f"no child of {parent} is rank {rank}")


def test_both_ranks_stop_and_save_though_one_alone_was_asked(tmp_path: Path) -> None:
    with working_in(tmp_path) as work:
        command = [
            *(sys.executable, "-m", "miner", "train", "--processes", "2"),
            f"model.path={work.base}",
            f"output.dir={work.published}",
            f"run_dir={work.run_dir}",
            *TINY,
            "optimizer.max_steps=1000",
            "checkpoint.every_steps=1000",
            "evaluation.every_steps=1000",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            while "step 1/1000" not in (line := process.stdout.readline()):
                assert line, "the run ended before its first step"
            os.kill(process_of_rank(1, process.pid), signal.SIGTERM)
            rest, _ = process.communicate()
        finally:
            process.kill()
        assert process.returncode == 0, rest
        assert work.checkpoint is not None
        assert work.checkpoint.step == work.steps[-1] < 1000
        assert verify_model(work.published, load=True).loaded
