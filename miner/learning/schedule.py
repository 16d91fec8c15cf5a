"""Progress of a run: by steps, by training time, or by the time of the kill, whichever is further.

Invariants:
* training time counts over restarts: each checkpoint records what was spent until it was written;
* time is measured on a monotonic clock: a jump of the wall clock during the run changes nothing;
* training stops so early that the last evaluation, saving and verifying fit before the kill, judged
  by the longest durations measured lately (of evaluations by the latest, since replies change as a
  model learns, and by the plan for the share of its games that were forfeited, which cost nothing)
  and a quarter more;
* the share of the time before the kill never decreases, although the estimates behind it move.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.settings import OptimizerSettings
from miner.distributed.ranks import Ranks

P = ParamSpec("P")
T = TypeVar("T")
Phase = Literal["step", "evaluation", "publication"]

SAFETY = 1.25
"""Factor on measured durations: a server may be slower the last time."""

FIRST_GUESS: Mapping[Phase, float] = MappingProxyType({"evaluation": 300.0, "publication": 180.0})
"""Seconds reserved for a phase that was not measured yet."""

RECENT: Mapping[Phase, int] = MappingProxyType({"step": 5, "evaluation": 1, "publication": 5})
"""Durations remembered per phase: the first step, slow by compilation, is soon forgotten, and so is
the evaluation of a base whose replies end at their limit."""


def seconds_until(kill: float | None) -> float:
    """Seconds until a kill at a Unix time, 0 if it is past; infinite without a kill."""
    return math.inf if kill is None else max(0.0, kill - time.time())


class Schedule(TrainerCallback):
    """Fraction of the run that is used up; stops it before its time is over.

    Args:
        max_steps: optimizer steps at most.
        seconds: training time at most over all restarts, evaluations included; None: unlimited.
        kill_in: seconds from now until the kill; infinite: none.
        spent_before: seconds that earlier processes of this run trained.
        idle: seconds so far in which nothing could be done; they do not count in how long a step
            or an evaluation takes.
        margin: seconds kept free before the kill for ending all processes.
        guesses: seconds to reserve per phase until it was measured once.
        clock: monotonic seconds, injected by tests.
    """

    def __init__(
        self,
        max_steps: int,
        seconds: float | None = None,
        kill_in: float = math.inf,
        spent_before: float = 0.0,
        idle: Callable[[], float] = lambda: 0.0,
        margin: float = 60.0,
        guesses: Mapping[Phase, float] = FIRST_GUESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_steps = max_steps
        self._seconds = seconds or math.inf
        self._ends_at = clock() + kill_in
        self._spent_before = spent_before
        self._idle = idle
        self._margin = margin
        self._guesses = guesses
        self._clock = clock
        self._started = clock()
        self._began = spent_before, 0
        self._spent: dict[str, float] = {}
        self._measured: dict[Phase, deque[float]] = {}
        self._share_before_kill = 0.0
        self._step_began = self._busy()

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all restarts."""
        return self._spent_before + self._clock() - self._started

    @property
    def ends_by_kill(self) -> bool:
        """Return whether a kill ends the run, after which nothing can be resumed."""
        return math.isfinite(self._ends_at)

    def expected(self, phase: Phase) -> float:
        """Seconds the next `phase` is planned with."""
        measured = self._measured.get(phase)
        return SAFETY * max(measured) if measured else self._guesses.get(phase, 0.0)

    def training_left(self) -> float:
        """Seconds until training has to stop; infinite where only steps end it."""
        return min(max(0.0, self._seconds - self.elapsed), self._before_reserve())

    def for_evaluation(self) -> float:
        """Seconds until the last publication has to begin; infinite without a kill."""
        reserve = self._margin + self.expected("publication")
        return max(0.0, self._ends_at - self._clock() - reserve)

    def patience(self) -> float:
        """Seconds for which lost servers may be waited for: as training has time left, and after it
        what the last evaluation has."""
        return self.training_left() or self.for_evaluation()

    def fraction(self, step: int) -> float:
        """Share of the run that is used up after `step` optimizer steps, in [0, 1]."""
        whole = self.elapsed + self._before_reserve()
        share = self.elapsed / whole if whole > 0 else 1.0
        self._share_before_kill = max(self._share_before_kill, share)
        used = step / self._max_steps, self.elapsed / self._seconds, self._share_before_kill
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
        """Learn how long an evaluation or a publication takes; no step's time."""
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
        """Record how long a phase (a step with its rollouts) took, also in an earlier process."""
        self._measured.setdefault(phase, deque(maxlen=RECENT[phase])).append(seconds)

    def lengthen(self, phase: Phase, seconds: float) -> None:
        """Plan with so many more for the next `phase` than the last one took."""
        self._measured[phase][-1] += seconds

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
        """Return whether an evaluation with publication now leaves time before the kill for a step
        before the last one, and at least `before_last` seconds."""
        detour = self.expected("evaluation") + self.expected("publication")
        return self._before_reserve() > detour + max(before_last, self.expected("step"))

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
        self.observe("step", step_seconds)
        control.should_training_stop |= (
            self.elapsed + step_seconds > self._seconds
            or self._before_reserve() <= self.expected("step")
        )
        # to continue with more time, or if the last evaluation is killed
        control.should_save |= control.should_training_stop

    def _before_reserve(self) -> float:
        """Seconds until all that is left before the kill is needed for the end; 0 when past."""
        reserve = self._margin + self.expected("evaluation") + self.expected("publication")
        return max(0.0, self._ends_at - self._clock() - reserve)

    def _busy(self) -> float:
        return self._clock() - self._idle()
