"""Plans of runs whose time is never over."""

from __future__ import annotations

import time
from pathlib import Path

from entrypoint.run_plan import RunPlan

FOR_EVER = 100_000.0
"""Seconds: however slow the machine is, no run here ends because of its time."""


def run_plan(folder: Path, **fields: object) -> RunPlan:
    """A run in `folder`; no time is left for loading what it publishes: the structure counts."""
    now = time.time()
    return RunPlan.model_validate(
        {
            "run_dir": folder / "run",
            "output_dir": folder / "out/repo",
            "socket": folder / "s",
            "started_at": now,
            "trainer_ends_at": now + FOR_EVER,
            "ends_at": now + FOR_EVER,
            "kill_at": now,
            **fields,
        }
    )
