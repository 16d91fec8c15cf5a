"""Progress of a run: by steps, by training time, or by the time of the kill, whichever is further.

Training time counts over restarts: each checkpoint records what was spent until it was written.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.settings import OptimizerSettings
from miner.distributed.ranks import Ranks
from miner.publishing.deadline import Deadline, Phase

P = ParamSpec("P")
T = TypeVar("T")


class Schedule(TrainerCallback):
    """Fraction of the run that is used up; stops it before its time is over.

    Args:
        max_steps: optimizer steps at most.
        seconds: training time at most over all restarts, evaluations included; None: unlimited.
        deadline: the kill to be ahead of; None: no limit.
        spent_before: seconds that earlier processes of this run trained.
        idle: seconds so far in which nothing could be done; they do not count in how long a step
            or an evaluation takes.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        max_steps: int,
        seconds: float | None = None,
        deadline: Deadline | None = None,
        spent_before: float = 0.0,
        idle: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_steps = max_steps
        self._seconds = seconds
        self._deadline = deadline
        self._spent_before = spent_before
        self._idle = idle
        self._clock = clock
        self._started = clock()
        self._began = spent_before, 0
        self._spent: dict[str, float] = {}
        self._step_began = self._busy()
        if deadline is not None:
            deadline.begin_training(spent_before)

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all restarts."""
        return self._spent_before + self._clock() - self._started

    @property
    def ends_by_kill(self) -> bool:
        """Return whether a deadline ends the run, after which nothing can be resumed."""
        return self._deadline is not None

    def training_left(self) -> float:
        """Seconds until training has to stop; infinite where only steps end it."""
        left = math.inf if not self._seconds else max(0.0, self._seconds - self.elapsed)
        return left if self._deadline is None else min(left, self._deadline.training_left())

    def fraction(self, step: int) -> float:
        """Share of the run that is used up after `step` optimizer steps, in [0, 1]."""
        used = [step / self._max_steps]
        if self._seconds:
            used.append(self.elapsed / self._seconds)
        if self._deadline is not None:
            used.append(self._deadline.fraction_used())
        return min(1.0, max(used))

    def falling(self, step: int, share: float) -> float:
        """1 until the last `share` of the run, from there linear to 0 at its end."""
        return min(1.0, (1.0 - self.fraction(step)) / share)

    def learning_rate_factor(
        self, settings: OptimizerSettings, ranks: Ranks
    ) -> Callable[[int], float]:
        """Warm-up by steps, then constant, then by rank 0's clock linear to zero at the end."""

        def factor(step: int) -> float:
            warmup = min(1.0, (step + 1) / (settings.warmup_steps + 1))
            return warmup * ranks.broadcast(self.falling(step, settings.decay_share))

        return factor

    def seconds_left(self, step: int) -> float | None:
        """Estimated seconds to the end, by the limit that comes first: of time, or of steps as long
        as those of this process so far. None where neither is known."""
        left = [self.training_left()]
        seconds, steps = self.elapsed - self._began[0], step - self._began[1]
        if steps > 0:
            left.append(seconds / steps * (self._max_steps - step))
        return min(left) if math.isfinite(min(left)) else None

    @contextmanager
    def measured(self, phase: Phase) -> Iterator[None]:
        """Let the deadline learn how long an evaluation or a publication takes; no step's time."""
        began = self._busy()
        with self.between_steps(phase):
            yield
        self.observe(phase, self._busy() - began)

    @contextmanager
    def between_steps(self, phase: str) -> Iterator[None]:
        """Count the seconds inside as spent on `phase`, and not as a step's."""
        began = self._busy()
        yield
        taken = self._busy() - began
        self._step_began += taken
        self.spend(phase, taken)

    def observe(self, phase: Phase, seconds: float) -> None:
        """Let the deadline know how long a phase took, also one of an earlier process."""
        if self._deadline is not None:
            self._deadline.observe(phase, seconds)

    def timed(self, phase: str, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, whose seconds count as spent on `phase`."""

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            began = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.spend(phase, self._clock() - began)

        return run

    def spend(self, phase: str, seconds: float) -> None:
        """Count `seconds` as spent on `phase`."""
        self._spent[phase] = self._spent.get(phase, 0.0) + seconds

    def taken_phases(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def room_for_evaluation(self, before_last: float = 0.0) -> bool:
        """Return whether an evaluation now leaves time for the last one, `before_last` seconds
        away."""
        return self._deadline is None or self._deadline.room_for_evaluation(before_last)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step_began = self._busy()
        self._began = self.elapsed, state.global_step
        control.should_training_stop = self.training_left() <= 0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        now = self._busy()
        # all that came between two steps as well: checkpoints of large models take long
        step_seconds, self._step_began = now - self._step_began, now
        if self._seconds and self.elapsed + step_seconds > self._seconds:
            control.should_training_stop = True
        self.observe("step", step_seconds)
        if self._deadline is not None:
            control.should_training_stop |= self._deadline.should_stop()
        # to continue with more time, or if the last evaluation is killed
        control.should_save |= control.should_training_stop

    def _busy(self) -> float:
        return self._clock() - self._idle()
