"""How far a run is: by steps or by training time, whichever is further along.

Time counts over restarts: each checkpoint records what was spent until it was written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.training.settings import OptimizerSettings


class Pace(TrainerCallback):
    """Fraction of the run that is used up; stops it before the time is over.

    Args:
        max_steps: optimizer steps at most.
        seconds: training time at most over all restarts, evaluations included; None: unlimited.
        spent_before: seconds that earlier processes of this run trained.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        max_steps: int,
        seconds: float | None,
        spent_before: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_steps = max_steps
        self.seconds = seconds
        self.spent_before = spent_before
        self._clock = clock
        self._started = clock()
        self._step_seconds = 0.0
        self._step_began = self._started

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all restarts."""
        return self.spent_before + self._clock() - self._started

    def fraction(self, step: int) -> float:
        """How much of the run is used up after `step` optimizer steps, in [0, 1]."""
        by_time = self.elapsed / self.seconds if self.seconds else 0.0
        return min(1.0, max(step / self.max_steps, by_time))

    def learning_rate_factor(self, settings: OptimizerSettings) -> Callable[[int], float]:
        """Warm-up by steps, then constant or linear to zero by `fraction`."""

        def factor(step: int) -> float:
            warmup = min(1.0, (step + 1) / (settings.warmup_steps + 1))
            return warmup * (1.0 - self.fraction(step) if settings.schedule == "linear" else 1.0)

        return factor

    def seconds_left(self, step: int) -> float | None:
        """Estimated seconds to the end, by the slower of both limits; None before any step."""
        done = self.fraction(step)
        return self.elapsed * (1.0 - done) / done if done else None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step_began = self._clock()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step_seconds = self._clock() - self._step_began
        if self.seconds and self.elapsed + self._step_seconds > self.seconds:
            control.should_training_stop = True
