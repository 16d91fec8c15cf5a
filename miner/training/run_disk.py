"""Room on the disk of a run folder, asked for before anything large is written there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from miner.publishing.structure import weight_files

MARGIN = 1.05
"""On the bytes of tensors: file headers, the tokenizer."""

SAMPLE_BYTES = 1 << 28
"""Written to learn how fast the disk is."""


class RunDisk:
    """The disk of a run folder, on which the next publication always finds room.

    Args:
        folder: of the run; it exists.
        note: shows a line to the user.
        reserve: bytes that stay free, for the next publication.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], reserve: int = 0) -> None:
        self.folder = folder
        self.note = note
        self._reserve = reserve

    @classmethod
    def beside(cls, output: Path, base: Path, folder: Path, note: Callable[[str], None]) -> RunDisk:
        """The disk of `folder`, which keeps room for a model as large as `base` if it is also that
        of `output`."""
        shared = folder.stat().st_dev == output.absolute().parent.stat().st_dev
        reserve = sum(file.stat().st_size for file in weight_files(base)) if shared else 0
        return cls(folder, note, reserve)

    def lacks(self, size: int) -> str:
        """Return why `size` bytes of tensors do not fit, or ""."""
        size, free = int(MARGIN * size), shutil.disk_usage(self.folder).free
        if free >= size + self._reserve:
            return ""
        kept = f" beside {self._reserve / 1e6:,.1f} MB for publishing" if self._reserve else ""
        has = f"{free / 1e6:,.1f} MB are free in {self.folder}"
        return f"which needs {size / 1e6:,.1f} MB{kept}: {has}"

    def seconds_for(self, size: int) -> float:
        """Seconds that writing `size` bytes takes, by writing some of them."""
        sample = min(size, SAMPLE_BYTES)
        block = bytes(min(max(sample, 1), 1 << 20))
        began, written = time.perf_counter(), 0
        with tempfile.TemporaryFile(dir=self.folder) as file:
            while written < sample:
                written += file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - began) * size / max(written, 1)
