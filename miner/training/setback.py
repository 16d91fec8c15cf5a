"""Back to the best weights at half the learning rate, once held-out games are being lost.

Invariants:
* it is decided once for all ranks, right after an evaluation, and a bounded number of times;
* weights and optimizer become those of the published model's checkpoint (the base's, where nothing
  better was found); steps, tasks and the schedule go on;
* rotation leaves that checkpoint alone; going back writes one of its own at once, which carries how
  often the rate was halved: a resumed run goes on as this one would have.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import COMPLETE
from miner.distributed.ranks import Ranks
from miner.inference.engines import GenerationEngine
from miner.training.checkpoints import checkpoint_folder
from miner.training.held_out import HeldOut
from miner.training.trainer import EpisodeTrainer


class Setback(TrainerCallback):
    """Called after those that evaluate, and that leave checkpoints out.

    Args:
        engine: gets the weights that were gone back to before it plays again.
        most: so many times in a run.
        note: shows a line to the person who watches.
    """

    def __init__(
        self,
        held_out: HeldOut,
        trainer: EpisodeTrainer,
        engine: GenerationEngine,
        ranks: Ranks,
        *,
        most: int,
        note: Callable[[str], None],
    ) -> None:
        self._held_out = held_out
        self._trainer = trainer
        self._engine = engine
        self._ranks = ranks
        self._most = most
        self._note = note

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the base's weights. Without the marker nobody resumes from them."""
        if state.global_step:
            return
        folder = checkpoint_folder(args, 0)
        if self._ranks.leads:
            shutil.rmtree(folder, ignore_errors=True)  # of an attempt with another ZeRO stage
        self._ranks.gather(None)
        self._trainer._save_checkpoint(self._trainer.model, trial=None)
        self._ranks.gather(None)
        state.best_model_checkpoint = str(folder)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        step, best = state.global_step, self._held_out.best.step
        if step == best:  # rotation keeps what transformers takes for its best
            state.best_model_checkpoint = str(checkpoint_folder(args, step))
            control.should_save = True
            return
        fall = self._held_out.fall(step)
        due = fall is not None and self._trainer.halvings < self._most
        if not self._ranks.share(due and not control.should_training_stop):
            return
        folder = checkpoint_folder(args, best)
        # the base's was written to its end before anything was learned
        whole = folder.is_dir() if best == 0 else (folder / COMPLETE).is_file()
        whole = self._ranks.share(whole)
        self._trainer.go_back(folder if whole else None)
        if whole:
            self._engine.weights_changed(best)
        control.should_save = True
        target = f"back to the weights of step {best}" if whole else f"step {best} was not saved"
        self._note(
            f"step {step}: held-out score {fall} against step {best}: {target}, learning rate "
            f"halved ({self._trainer.halvings} of {self._most} times at most)"
        )
