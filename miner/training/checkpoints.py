"""Resumable checkpoints: the newest complete one, and what it says about time spent.

Invariant: a checkpoint is complete exactly if it holds `COMPLETE`, which is written last; a folder
that a kill left half-written is never resumed from.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import COMPLETE
from miner.distributed.ranks import Ranks
from miner.training.pace import Pace


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder, its optimizer step and the training seconds until then.

    Attributes:
        halvings: how often the learning rate was halved until then.
        published: whether its weights were handed over.
    """

    path: Path
    step: int
    elapsed: float
    halvings: int = 0
    published: bool = False


def newest_checkpoint(folder: Path, *, published: bool = False) -> Checkpoint | None:
    """The complete checkpoint with the highest step, None if there is none.

    Args:
        published: only those of published weights.
    """
    found = []
    for path in folder.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        try:
            marker = json.loads((path / COMPLETE).read_text())
        except (OSError, ValueError):
            continue
        if match and marker.get("step") == int(match[1]):
            elapsed, halvings = float(marker["elapsed"]), int(marker.get("halvings", 0))
            best = bool(marker.get("published"))
            found.append(Checkpoint(path, marker["step"], elapsed, halvings, best))
    found = [checkpoint for checkpoint in found if checkpoint.published or not published]
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


def checkpoint_folder(args: TrainingArguments, step: int) -> Path:
    """Where transformers writes the checkpoint of a step."""
    return Path(str(args.output_dir)) / f"checkpoint-{step}"


class SecondsApart(TrainerCallback):
    """Leaves out checkpoints that come too soon: those of a large model are slow and huge.

    The one at the end of a run is never left out, nor one that a callback after this one wants.

    Args:
        seconds: at least, between two checkpoints; counted from the start for the first.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not control.should_training_stop and self._clock() - self._last < self._seconds:
            control.should_save = False

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._last = self._clock()


class CheckpointMarker(TrainerCallback):
    """Marks each checkpoint complete once every rank has written its part of it.

    Args:
        sound: whether the weights may be resumed from.
        halvings: how often the learning rate was halved.
        published: whether the weights of a step were published.
    """

    def __init__(
        self,
        pace: Pace,
        ranks: Ranks,
        sound: Callable[[], bool] = lambda: True,
        halvings: Callable[[], int] = lambda: 0,
        published: Callable[[int], bool] = lambda step: False,
    ) -> None:
        self._pace = pace
        self._ranks = ranks
        self._sound = sound
        self._halvings = halvings
        self._published = published

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._ranks.gather(None)
        if not self._ranks.leads or not self._sound():
            return
        folder = checkpoint_folder(args, state.global_step)
        marker = {
            "step": state.global_step,
            "elapsed": self._pace.elapsed,
            "halvings": self._halvings(),
            "published": self._published(state.global_step),
        }
        with open(folder / COMPLETE, "w") as file:
            json.dump(marker, file)
            file.flush()
            os.fsync(file.fileno())
