"""Resumable checkpoints, optimizer included: they exist for continuing after a kill, and for that
alone.

Invariants:
* a checkpoint is complete exactly if it holds `COMPLETE`, which is written last; a folder that a
  kill left half-written is never resumed from;
* there is one, and one more only while that is being written;
* none is written that does not fit on the disk beside the next publication, that could not be
  resumed from, or that would make saving cost more than `SHARE` of a run whose end is a kill.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import COMPLETE
from miner.distributed.ranks import Ranks
from miner.learning.schedule import Schedule
from miner.publishing.filesystem import make_durable
from miner.publishing.structure import weight_files

SHARE = 0.05
"""Of the time until a kill, at most, for writing checkpoints."""


def refused_by_disk(error: Exception) -> bool:
    """Return whether writing a checkpoint raised this because the disk refused.

    torch.save raises RuntimeError, tokenizers nothing better than Exception.
    """
    said = any(words in str(error) for words in ("os error", "iostream", "inline_container"))
    return isinstance(error, OSError | SafetensorError) or said


def checkpoint_folder(args: TrainingArguments, step: int) -> Path:
    """Folder in which transformers writes the checkpoint of a step."""
    return Path(str(args.output_dir)) / f"checkpoint-{step}"


def checkpoint_bytes(model: torch.nn.Module, *, zero: bool) -> int:
    """Bytes of the weights and of Adam's two moments for each trained one; under ZeRO its float32
    master copy and a second copy of the weights come with them. Adapters are saved alone."""
    total = 0
    for parameter in model.parameters():
        count, size = getattr(parameter, "ds_numel", parameter.numel()), parameter.itemsize
        copies = 2 * size if zero else size
        if parameter.requires_grad:
            total += count * (copies + (12 if zero else 8))
        elif not isinstance(model, PeftModel):
            total += count * copies
    return total


class Checkpoints(TrainerCallback):
    """The last callback: decides on checkpoints that others want, and completes written ones.

    Args:
        size: bytes of a checkpoint.
        seconds_apart: at least, between two; counted from the start for the first.
        sound: true if the weights may be resumed from.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        schedule: Schedule,
        ranks: Ranks,
        heartbeat: HeartbeatWriter,
        disk: RunDisk,
        *,
        size: int,
        seconds_apart: float = 0.0,
        sound: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedule = schedule
        self._ranks = ranks
        self._heartbeat = heartbeat
        self._disk = disk
        self._size = size
        self._seconds_apart = seconds_apart
        self._sound = sound
        self._clock = clock
        self._last = self._began = clock()
        self._seconds: float | None = None  # that a checkpoint takes

    def allows(self, step: int, *, ending: bool) -> bool:
        """Return whether a checkpoint may be written now; collective.

        Args:
            ending: training ends with this step, so that no later one can take its place.
        """
        allowed = self._ranks.broadcast(self._leads_allow(step, ending=ending))
        if allowed:
            self._began = self._clock()
            self._heartbeat.beat("writing a checkpoint", step)
        return allowed

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.save_steps = int(args.save_steps)  # a checkpoint brings its own back

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if control.should_save:
            ending = control.should_training_stop
            control.should_save = self.allows(state.global_step, ending=ending)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Mark it complete once every rank has written its part, and remove the one before."""
        self._ranks.gather(None)
        self._timed()
        folder = checkpoint_folder(args, state.global_step)
        if not self._ranks.leads or not folder.exists():  # or the disk refused it
            return
        try:
            make_durable(folder)
            self._heartbeat.beat("marking a checkpoint", state.global_step)  # that took its time
            marker = {"step": state.global_step, "elapsed": self._schedule.elapsed}
            (folder / COMPLETE).write_text(json.dumps(marker))
            make_durable(folder)  # the marker, and only now: the rest of it is on the disk
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._disk.note(f"step {state.global_step}: no checkpoint: {error}")
            return
        finally:
            self._timed()
        for other in folder.parent.glob("checkpoint-*"):
            if other != folder:
                (other / COMPLETE).unlink(missing_ok=True)  # first: half of it is not a checkpoint
                shutil.rmtree(other, ignore_errors=True)

    def _timed(self) -> None:
        self._last = self._clock()
        self._seconds = self._last - self._began

    def _leads_allow(self, step: int, *, ending: bool) -> bool:
        if not self._ranks.leads or not self._sound():
            return False
        since = self._clock() - self._last
        if not ending and since < self._seconds_apart:
            return False
        lacking = self._disk.lacks(self._size)
        if self._schedule.ends_by_kill and self._seconds is None and not lacking:
            try:
                self._seconds = self._disk.seconds_for(self._size)
            except OSError as error:
                lacking = f"as the disk refuses it: {error}"
        if lacking:
            self._last = self._clock()
            self._disk.note(f"step {step}: no checkpoint, {lacking}")
            return False
        if self._schedule.ends_by_kill:
            assert self._seconds is not None
            return SHARE * since >= self._seconds <= self._schedule.training_left()
        return True


MARGIN = 1.05
"""On the bytes of tensors: file headers, the tokenizer."""

SAMPLE_BYTES = 1 << 28
"""Written to learn how fast the disk is."""


class RunDisk:
    """The disk of a run folder, on which the next publication or push always finds room.

    Args:
        folder: of the run; it exists.
        note: shows a line to the user.
        reserve: bytes that stay free, for the next publication or push: they take turns.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], reserve: int = 0) -> None:
        self.folder = folder
        self.note = note
        self._reserve = reserve

    @classmethod
    def beside(
        cls, output: Path, base: Path, folder: Path, note: Callable[[str], None], *, pushes: bool
    ) -> RunDisk:
        """The disk of `folder`, which keeps room for a model as large as `base` if it is also that
        of `output`, or weights are pushed to a server by a file in `folder`."""
        shared = folder.stat().st_dev == output.absolute().parent.stat().st_dev
        weights = sum(file.stat().st_size for file in weight_files(base))
        reserve = weights if shared or pushes else 0
        return cls(folder, note, reserve)

    def lacks(self, size: int) -> str:
        """Return why `size` bytes of tensors do not fit, or ""."""
        size, free = int(MARGIN * size), shutil.disk_usage(self.folder).free
        if free >= size + self._reserve:
            return ""
        reserved = f"{self._reserve / 1e6:,.1f} MB"
        kept = f" beside {reserved} for publishing and pushes" if self._reserve else ""
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
