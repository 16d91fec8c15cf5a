"""The trainer's sign of life: one small file, written by it and read by its watchdog."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from miner.config.run_files import write_atomically

LONGEST_PHASE = 40
"""Characters of a phase that are shown, whatever the file holds."""


@dataclass(frozen=True)
class Heartbeat:
    """What the trainer last said: when (Unix seconds), in which phase, at which optimizer step."""

    time: float
    phase: str
    step: int

    def write(self, file: Path) -> None:
        """Replace `file`, so that no reader ever sees half of it."""
        write_atomically(file, json.dumps(asdict(self)))


def read_heartbeat(file: Path, since: float) -> Heartbeat:
    """The newest heartbeat of the attempt that began at `since`.

    Before the first one, and for whatever an earlier attempt left, it is the attempt's own start.
    """
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError):
        value = None
    said = value if isinstance(value, dict) else {}
    time, phase, step = said.get("time"), said.get("phase"), said.get("step")
    if not isinstance(time, int | float) or not math.isfinite(time) or time < since:
        return Heartbeat(since, "starting", 0)
    return Heartbeat(
        float(time),
        str(phase)[:LONGEST_PHASE] if phase else "unknown",
        step if isinstance(step, int) else 0,
    )
