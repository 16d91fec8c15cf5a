"""Costs of `miner watch`: CPU seconds to the first page of a long run, and of one new step.

python -m benchmarks.watch
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from miner.cli.watch import PATIENCE
from miner.reporting.records import LOGPROB_GAP, StepRecord
from miner.reporting.run_folder import RunFolder
from miner.reporting.templates import render
from miner.reporting.watch import LiveRun


def step(number: int) -> StepRecord:
    """A step's record, as full as the trainer's."""
    return StepRecord(
        step=number,
        time=1.7e9 + number,
        seconds=2.0,
        reward=0.1,
        score=0.5,
        tokens_per_second=900.0 + number % 97,
        groups=16,
        flat_groups=number % 5,
        phases={"playing": 1.2, "learning": 0.7, "saving": 0.1},
        metrics={"entropy": 1.0, "loss": 0.01, LOGPROB_GAP: 0.002},
    )


def main() -> None:
    """Print CPU seconds; on a loaded machine they stay what they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        lines = "".join(step(n).model_dump_json() + "\n" for n in range(1, steps + 1))
        run.steps.path.write_text(lines)
        live, seconds = LiveRun(Path(folder)), []
        for _ in range(5):
            began = time.process_time()
            render("watch.html.j2", view=live.view(), token="")
            seconds.append(time.process_time() - began)
            steps += 1
            run.steps.append(step(steps))
    later = min(seconds[1:])
    print(f"first page of {len(lines) / 1e6:.1f} MB of records: {seconds[0]:.2f} s of CPU")
    print(f"each page after it: {later:.3f} s, at most every {max(1.0, PATIENCE * later):.1f} s")
    print(f"share of a core while a page is open: {100 / max(PATIENCE, 1 / later):.2f}%")


if __name__ == "__main__":
    main()
