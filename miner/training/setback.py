"""Back to the best weights at half the learning rate, once held-out games are being lost.

Invariants:
* it is decided once for all ranks, right after an evaluation, and a bounded number of times;
* weights and optimizer become those of the newest whole checkpoint of weights that were published,
  by this process or an earlier one. The base was: a run begins with a checkpoint of it, without
  which the run that a rate ruins at once would be ruined for good. Steps, tasks and the schedule
  go on;
* rotation leaves that checkpoint alone; going back writes one of its own at once, which carries how
  often the rate was halved: a resumed run goes on as this one would have;
* nothing is written or loaded where no other evaluation has room.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.distributed.ranks import Ranks
from miner.inference.engines import GenerationEngine
from miner.training.checkpoints import newest_checkpoint
from miner.training.heart import Heart
from miner.training.held_out import HeldOut
from miner.training.pace import Pace
from miner.training.trainer import EpisodeTrainer


class Setback(TrainerCallback):
    """Called after those that evaluate, and that leave checkpoints out.

    Args:
        engine: gets the weights that were gone back to before it plays again.
        most: so many times in a run.
        heart: beats before weights are written or loaded, which takes minutes for large ones.
        note: shows a line to the person who watches.
    """

    def __init__(
        self,
        held_out: HeldOut,
        trainer: EpisodeTrainer,
        engine: GenerationEngine,
        ranks: Ranks,
        pace: Pace,
        heart: Heart,
        *,
        most: int,
        note: Callable[[str], None],
    ) -> None:
        self._held_out = held_out
        self._trainer = trainer
        self._engine = engine
        self._ranks = ranks
        self._pace = pace
        self._heart = heart
        self._most = most
        self._note = note

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kept = self._ranks.share(newest_checkpoint(Path(str(args.output_dir)), published=True))
        if state.global_step == 0 and kept is None:  # else it is there, and stays whole
            self._heart.beat("keeping the base's weights")
            self._trainer.save_between_steps()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kept = newest_checkpoint(Path(str(args.output_dir)), published=True)
        state.best_model_checkpoint = str(kept.path) if kept else None  # rotation leaves it alone
        step = state.global_step
        better, fall = self._held_out.rose(step), self._held_out.fall(step)
        lost = kept is not None and fall is not None
        due = better or (lost and self._trainer.halvings < self._most)
        # weights are kept and left for what the next evaluation finds
        due = due and not control.should_training_stop and self._pace.room_for_evaluation()
        due, better, kept = self._ranks.share((due, better, kept))
        if not due:
            return
        control.should_save = True
        self._heart.beat("keeping the best weights" if better else "going back to better weights")
        if better:
            return
        assert kept is not None
        self._trainer.go_back(kept.path)
        self._engine.weights_changed(kept.step)
        self._note(
            f"step {step}: held-out score {fall} against step {self._held_out.highest.step}: back "
            f"to the weights of step {kept.step}, learning rate halved ({self._trainer.halvings} "
            f"of {self._most} times at most)"
        )
