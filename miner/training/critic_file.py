"""The Goofspiel critic's counts, kept in the run folder: a critic without them takes the policy to
bid at random, and would teach a resumed run as at its first step."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import CRITIC_FILE, write_atomically
from miner.rewards.goofspiel_critic import Habits


class CriticFile(TrainerCallback):
    """Writes the counts after each step; all ranks have the same ones.

    Args:
        leads: true for the rank that writes.
    """

    def __init__(self, habits: Habits, run_dir: Path, *, leads: bool) -> None:
        self._habits = habits
        self._file = run_dir / CRITIC_FILE
        self._leads = leads

    def read(self) -> None:
        """Take the counts of an earlier process, if it has left any that can be read."""
        try:
            counts = np.array(json.loads(self._file.read_text()), dtype=np.float64)
        except (OSError, ValueError, TypeError):
            return
        if counts.shape == self._habits.counts.shape:
            self._habits.put(counts)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._leads:
            with suppress(OSError):  # a full disk: what was written before is better than none
                write_atomically(self._file, json.dumps(self._habits.counts.tolist()))
