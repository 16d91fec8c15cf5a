"""The trainer's sign of life: one small file, written by it and read by its watchdog."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from miner.config.run_files import HEARTBEAT_FILE, write_atomically


class Heartbeat(BaseModel):
    """The trainer's latest sign of life: when (Unix seconds), in which phase, at which optimizer
    step."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    time: float
    phase: str
    step: int

    def write(self, file: Path) -> None:
        """Replace `file`, so that no reader ever sees half of it."""
        write_atomically(file, self.model_dump_json())


def last_heartbeat(file: Path) -> Heartbeat | None:
    """The newest heartbeat; None where none can be read."""
    try:
        return Heartbeat.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def read_heartbeat(file: Path, since: float) -> Heartbeat:
    """The newest heartbeat of the attempt that began at `since`.

    Before the first one, and for one left by an earlier attempt, it is the attempt's own start.
    """
    newest = last_heartbeat(file)
    if newest and newest.time >= since:
        return newest
    return Heartbeat(time=since, phase="starting", step=0)


def newest_write(folder: Path, until: float) -> float:
    """Unix time of the newest write to a file below `folder`, 0 without one.

    A checkpoint of a large model is written for many minutes by libraries that hold the
    interpreter's lock, in which its process cannot beat.

    Args:
        until: later times are those of another clock, and do not count.
    """
    times = [0.0]
    for parent, _, files in os.walk(folder):  # passes over folders that are removed meanwhile
        for file in files:
            with suppress(OSError):
                times.append(os.stat(os.path.join(parent, file)).st_mtime)
    return max(time for time in times if time <= until)


QUIET_S = 1.0
"""Beats of the same phase and step closer than this are left out."""


class HeartbeatWriter:
    """Writes a `Heartbeat` into `run_dir` now and then.

    Of several processes each has its own: one that waits for the others does not beat.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / HEARTBEAT_FILE
        self._step = 0
        self._last = ("", -1, 0.0)
        self._lock = threading.Lock()  # episodes may end on one thread while another one trains

    def beat(self, phase: str, step: int | None = None) -> None:
        """Write a beat of `phase`; without a step the last one is kept."""
        with self._lock:
            if step is not None:
                self._step = step
            now = time.time()
            before, step_before, at = self._last
            if (phase, self._step) == (before, step_before) and now - at < QUIET_S:
                return
            self._last = (phase, self._step, now)
            with suppress(OSError):  # a full disk ends what has to be written, not a game
                Heartbeat(time=now, phase=phase, step=self._step).write(self._file)
