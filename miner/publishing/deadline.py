"""Deadline: the time that is left, and when training has to stop.

Invariants:
* time is measured from the container's start on a monotonic clock: a jump of the wall clock during
  the run changes nothing;
* training stops so early that the last evaluation, saving and verifying fit before the kill, judged
  by the longest durations measured lately (of evaluations by the latest, since replies change as a
  model learns) and a quarter more;
* `fraction_used` never decreases, although the estimates behind it move.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

Phase = Literal["step", "evaluation", "publication"]
Clock = Callable[[], float]

SAFETY = 1.25
"""Factor on measured durations: a server may be slower the last time."""

FIRST_GUESS: Mapping[Phase, float] = MappingProxyType(
    {"step": 0.0, "evaluation": 300.0, "publication": 180.0}
)
"""Seconds reserved for a phase that was not measured yet."""

RECENT: Mapping[Phase, int] = MappingProxyType({"step": 5, "evaluation": 1, "publication": 5})
"""Durations remembered per phase: the first step, slow by compilation, is soon forgotten, and so is
the evaluation of a base whose replies end at their limit."""


class Deadline:
    """The time plan of one run. All times are in seconds.

    Args:
        seconds: time given from the container's start to the kill.
        started_at: the container's start on `clock`.
        margin: kept free at the end for ending all processes.
        guesses: seconds to reserve per phase until it was measured once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        started_at: float,
        margin: float = 60.0,
        guesses: Mapping[Phase, float] = FIRST_GUESS,
        clock: Clock = time.monotonic,
    ) -> None:
        if not (math.isfinite(seconds) and seconds >= 0 and margin >= 0):
            raise ValueError(f"need finite seconds >= 0 and margin >= 0, got {seconds}, {margin}")
        self.ends_at = started_at + seconds
        self._margin = margin
        self._guesses = dict(guesses)
        self._clock = clock
        self._measured: dict[Phase, deque[float]] = {}
        self._training_since: float | None = None
        self._fraction = 0.0

    @classmethod
    def at(cls, kill: float | None) -> Deadline | None:
        """The deadline for a kill at a Unix time, counted from now; None for no kill."""
        if kill is None:
            return None
        return cls(max(0.0, kill - time.time()), started_at=time.monotonic())

    def observe(self, phase: Phase, seconds: float) -> None:
        """Record how long one step (with its rollouts), evaluation or publication took."""
        self._measured.setdefault(phase, deque(maxlen=RECENT[phase])).append(seconds)

    def expected(self, phase: Phase) -> float:
        """Seconds the next `phase` is planned with."""
        measured = self._measured.get(phase)
        return SAFETY * max(measured) if measured else self._guesses.get(phase, 0.0)

    def remaining(self) -> float:
        """Seconds until the kill; 0 when it is past."""
        return max(0.0, self.ends_at - self._clock())

    def reserve(self) -> float:
        """Seconds kept free for the last evaluation, the last publication and the way out."""
        return self._margin + self.expected("evaluation") + self.expected("publication")

    def training_left(self) -> float:
        """Seconds until the planned stop of training; 0 when it is past."""
        return max(0.0, self.remaining() - self.reserve())

    def should_stop(self) -> bool:
        """Return whether the next step would run into the reserve."""
        return self.training_left() <= self.expected("step")

    def room_for_evaluation(self, before_last: float = 0.0) -> bool:
        """Return whether an evaluation with publication now leaves time for a step before the last
        one, and at least `before_last` seconds."""
        detour = self.expected("evaluation") + self.expected("publication")
        return self.training_left() > detour + max(before_last, self.expected("step"))

    def begin_training(self, spent: float = 0.0) -> None:
        """Set the start of the window over which `fraction_used` runs.

        Args:
            spent: seconds of it that earlier processes of the run have trained.
        """
        self._training_since = self._clock() - spent

    def fraction_used(self) -> float:
        """Share of the training window that is over, in [0, 1]: the progress of the learning rate.

        0 before `begin_training`; 1 from the planned stop on.
        """
        if self._training_since is not None:
            spent, left = self._clock() - self._training_since, self.training_left()
            current = spent / (spent + left) if spent + left > 0 else 1.0
            self._fraction = max(self._fraction, current)
        return self._fraction
