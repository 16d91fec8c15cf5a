"""Back to the best weights at half the learning rate, once held-out games are being lost.

Invariants:
* it is decided once for all ranks, right after an evaluation, and a bounded number of times;
* no weights are put back that were farther from the targets: a base that learns another form of
  reply loses every game on its way (on a GPU held-out games fell from 0.44 to 0.00 in 31 steps),
  and after the targets it would not learn it any more;
* weights become those with the highest held-out score, the base's where none was higher; Adam's
  moments begin again. Steps, tasks and the schedule continue;
* `REVERT_FILE` records the last time: a run that resumes from a checkpoint of before, or from none,
  reverts again at once, so that it continues as this one would have;
* a run that was ended before its first checkpoint begins again with the best weights that it kept,
  and as much of its time is over as when it kept them;
* nothing is kept or loaded where no other evaluation has room.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import BEST_WEIGHTS_FILE, REVERT_FILE, write_atomically
from miner.distributed.ranks import Ranks
from miner.distributed.zero import gathered
from miner.inference.engines import GenerationEngine
from miner.learning.checkpoints import RunDisk
from miner.learning.learner import Learner
from miner.learning.schedule import Schedule
from miner.learning.trainer import EpisodeTrainer
from miner.reporting.records import target_distances
from miner.training.held_out import HeldOut

STEPS_COMPARED = 5
"""Steps over which a distance from the targets is a mean; that of one varies by a seventh."""

NATS_APART = 0.5
"""A form of reply that is not known is several nats away; at a plateau means differ by less."""

REVERTED = -1
"""Version of weights that were put back where their own step's number is taken by others."""


class RevertToBest(TrainerCallback):
    """Called after those that evaluate.

    Args:
        best: storage of the weights.
        engine: gets the weights that were put back before it plays again.
        most: so many times in a run.
        targets: the run learns targets. Teachers' and own steps measure the distance from them on
            different positions; where a run has many of both, the two are compared all the same.
        heartbeat: beats before weights are kept or put back, which takes minutes for large ones.
        note: shows a line to the user.
    """

    def __init__(
        self,
        held_out: HeldOut,
        trainer: EpisodeTrainer,
        best: BestWeights,
        engine: GenerationEngine,
        ranks: Ranks,
        schedule: Schedule,
        heartbeat: HeartbeatWriter,
        run_dir: Path,
        *,
        most: int,
        targets: bool,
        note: Callable[[str], None],
    ) -> None:
        self._held_out = held_out
        self._trainer = trainer
        self._best = best
        self._engine = engine
        self._ranks = ranks
        self._schedule = schedule
        self._heartbeat = heartbeat
        self._file = run_dir / REVERT_FILE
        self._most = most
        self._note = note
        self._targets = targets
        self._written = 0
        self._from_before = False
        """True if the run was begun again with the highest weights: their step was counted before
        that, and the run's own first steps measure their distance."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        try:
            record = json.loads(self._file.read_text())
        except FileNotFoundError:
            record = None
        step = state.global_step
        kept = None if step else self._best.kept()
        unkept = (
            0 < step == self._held_out.highest.step
            and not self._holds_highest()
            # a run that had begun again counts other weights by the same steps
            and not (record or {}).get("from_before")
            and self._schedule.room_for_evaluation()
        )
        record, kept, unkept = self._ranks.broadcast((record, kept, unkept))
        if unkept:  # a run that had ended goes on: its last weights were the best
            self._heartbeat.beat("keeping the best weights")
            with self._schedule.between_steps("keeping"):
                self._best.keep(step, self._schedule.elapsed)
        if record is None and kept is None:
            return
        halvings = record["halvings"] if record else 0
        self._from_before = bool(kept or record.get("from_before"))
        if kept or 0 < state.global_step < record["step"]:
            step = self._revert(state.global_step, halvings=halvings)
            self._note(f"beginning with the weights of step {step}, kept before a restart")
            # what is saved from the next step on has them already
            self._write(state.global_step + 1)
        else:
            self._trainer.halve_to(halvings)
            self._written = record["step"]
            if not state.global_step:  # begun anew: nothing is put back before what it saves
                self._write(0)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step = state.global_step
        rose, fall = self._held_out.rose(step), self._held_out.fall(step)
        due = rose or (
            fall is not None
            and self._trainer.halvings < self._most
            and self._holds_highest()
            and not (self._targets and self._would_lose(state.log_history))
        )
        # weights are kept and put back for what the next evaluation finds
        due = due and not control.should_training_stop and self._schedule.room_for_evaluation()
        due, rose = self._ranks.broadcast((due, rose))
        if rose and self._from_before:
            self._from_before = False
            self._write(self._written)
        if not due:
            return
        if rose:
            self._heartbeat.beat("keeping the best weights")
            began = self._schedule.elapsed
            with self._schedule.between_steps("keeping"):
                self._best.keep(step, began)
            self._held_out.lengthen(self._schedule.elapsed - began)
            return
        with self._schedule.between_steps("keeping"):
            before = self._revert(step, halvings=self._trainer.halvings + 1)
        self._write(step)
        self._note(
            f"step {step}: held-out score {fall} against step {self._held_out.highest.step}: back "
            f"to the weights of step {before}, learning rate halved ({self._trainer.halvings} "
            f"of {self._most} times at most)"
        )

    def _holds_highest(self) -> bool:
        """Return whether the weights to go back to are those of the highest score. A disk may have
        had no room for them, and a run that lost them begins again below it."""
        kept = self._best.kept()
        return (kept.step if kept else 0) == self._held_out.highest.step

    def _would_lose(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the weights to go back to were farther from the targets than the last
        ones that were measured.

        Args:
            history: what each step has logged, in order.
        """
        best = 0 if self._from_before else self._held_out.highest.step
        measured = list(target_distances(history))
        before = [d for step, d in measured if best < step <= best + STEPS_COMPARED]
        now = [distance for _, distance in measured[:STEPS_COMPARED]]
        return bool(before) and fmean(now) < fmean(before) - NATS_APART

    def _write(self, step: int) -> None:
        """Record that weights were put back before what is saved at `step`."""
        self._written = step
        if self._ranks.leads:
            record: dict[str, Any] = {"step": step, "halvings": self._trainer.halvings}
            record |= {"from_before": True} if self._from_before else {}
            write_atomically(self._file, json.dumps(record))

    def _revert(self, step: int, *, halvings: int) -> int:
        """Put the best weights back; returns their step."""
        self._heartbeat.beat("going back to better weights")
        before = self._best.put_back()
        self._trainer.begin_again(halvings)
        self._engine.weights_changed(before if before != step else REVERTED)
        return before


@dataclass(frozen=True)
class Kept:
    """Kept weights: their step, and the seconds of training until then."""

    step: int
    elapsed: float


def kept_weights(folder: Path, learner: Learner) -> Kept | None:
    """The best weights in a run folder; None where there are none, or those of another tuning."""
    with suppress(FileNotFoundError), safe_open(folder / BEST_WEIGHTS_FILE, "pt") as file:
        if set(file.keys()) == learner.trained.keys():
            about = file.metadata()
            return Kept(int(about["step"]), float(about.get("elapsed", 0)))
    return None


class BestWeights:
    """The trained weights with the highest held-out score, without the optimizer, in one file.

    Kept by rank 0, put back by all ranks; both methods are collective. The file is replaced as a
    whole, and only by weights that were published. The base needs none: its folder is loaded
    again, and adapters return to no change.

    Args:
        disk: of the run folder, whose file outlives the process.
    """

    def __init__(self, learner: Learner, ranks: Ranks, disk: RunDisk) -> None:
        self._file = disk.folder / BEST_WEIGHTS_FILE
        self._learner = learner
        self._ranks = ranks
        self._disk = disk

    def keep(self, step: int, elapsed: float) -> None:
        """Keep the current weights, of `step` and after `elapsed` seconds of training; where the
        disk has no room, those before stay."""
        weights = {}
        for name, parameter in self._learner.trained.items():
            with gathered([parameter]):
                if self._ranks.leads:
                    weights[name] = parameter.detach().to("cpu", copy=True).contiguous()
        if self._ranks.leads:
            self._write(weights, {"step": str(step), "elapsed": str(elapsed)})

    def kept(self) -> Kept | None:
        """The weights that `put_back` would put back, unless they are the base's."""
        return kept_weights(self._disk.folder, self._learner)

    def put_back(self) -> int:
        """Put the kept weights, else the base's, into the model; returns their step, or 0."""
        if kept := self.kept():
            with safe_open(self._file, "pt") as file:
                self._fill(file.get_tensor)
            return kept.step
        self._fill(self._learner.untrained_weights().__getitem__)
        return 0

    def _fill(self, weight: Callable[[str], torch.Tensor]) -> None:
        for name, parameter in self._learner.trained.items():
            with gathered([parameter], changed=True):
                parameter.data.copy_(weight(name))

    def _write(self, weights: Mapping[str, torch.Tensor], about: dict[str, str]) -> None:
        beside = self._file.with_name(f".{self._file.name}")
        lacking = self._disk.lacks(sum(weight.nbytes for weight in weights.values()))
        try:
            if not lacking:
                save_file(dict(weights), beside, metadata=about)
                beside.replace(self._file)
        except (OSError, SafetensorError) as error:
            beside.unlink(missing_ok=True)
            lacking = str(error)
        if lacking:
            step = about["step"]
            self._disk.note(f"step {step}: its weights are not kept to return to, {lacking}")
