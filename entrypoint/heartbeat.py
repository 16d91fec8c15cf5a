"""The trainer's sign of life and how to read its silence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from entrypoint.run_plan import read_json_object


@dataclass(frozen=True)
class Heartbeat:
    """What the trainer last said: when (Unix seconds), in which phase, at which optimizer step."""

    time: float
    phase: str
    step: int


def read_heartbeat(path: Path, since: float) -> Heartbeat:
    """The newest heartbeat of the attempt that began at `since`.

    Before the first one, and for whatever an earlier attempt left, it is the attempt's own start.
    """
    value = read_json_object(path) or {}
    time, phase, step = value.get("time"), value.get("phase"), value.get("step")
    if not isinstance(time, int | float) or not math.isfinite(time) or time < since:
        return Heartbeat(since, "starting", 0)
    return Heartbeat(
        float(time), str(phase)[:40] if phase else "unknown", step if isinstance(step, int) else 0
    )


def describe_silence(beat: Heartbeat, now: float, limit: float) -> str:
    """One sentence on a trainer that has been silent for too long."""
    return (
        f"no heartbeat for {now - beat.time:.0f} s (limit {limit:.0f} s) "
        f"in phase {beat.phase!r} at step {beat.step}"
    )
