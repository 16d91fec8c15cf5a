"""The heartbeat file by which a watchdog tells a run that works from one that hangs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from miner.config.heartbeat import Heartbeat
from miner.config.run_files import HEARTBEAT_FILE

QUIET_S = 1.0
"""Beats of the same phase and step closer than this are left out."""


class HeartbeatWriter:
    """Writes a `Heartbeat` into `run_dir` now and then.

    Of several processes each has one of its own: whoever waits for the others does not beat.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / HEARTBEAT_FILE
        self._step = 0
        self._last = ("", -1, 0.0)
        self._lock = threading.Lock()  # episodes may end on one thread while another one trains

    def beat(self, phase: str, step: int | None = None) -> None:
        """Say that `phase` goes on; without a step the last one stands."""
        with self._lock:
            if step is not None:
                self._step = step
            now = time.time()
            before, step_before, at = self._last
            if (phase, self._step) == (before, step_before) and now - at < QUIET_S:
                return
            self._last = (phase, self._step, now)
            Heartbeat(time=now, phase=phase, step=self._step).write(self._file)
