"""Curriculum: the look-up until it is measured to be learned, then the mixture of rules.

When the look-up forms depends on the last bits of floating-point numbers, and so on the processor:
a fixed number of steps would be too many on one machine and too few on another.
"""

from dataclasses import dataclass

from miner.tiny_model.number_following import Lesson


@dataclass(frozen=True, slots=True)
class CurriculumRecipe:
    """Lengths of the parts.

    Attributes:
        steps: all of them, at most.
        lookup_accuracy: measured share of right answers with which the look-up is there.
        measure_every: steps between measurements.
        mixture_steps: steps of the mixture, after the look-up.
        short: share of short sheets at the start.
        short_steps: steps from the start over which short sheets fade out.
        small_steps: first steps of the mixture that keep to the smallest size.
        warmup_steps: of the learning rate, which stays at its peak until the mixture begins.
        final_share: share of the learning rate at the end of the mixture.
    """

    steps: int = 3000
    lookup_accuracy: float = 0.95
    measure_every: int = 50
    mixture_steps: int = 1100
    short: float = 0.8
    short_steps: int = 900
    small_steps: int = 300
    warmup_steps: int = 50
    final_share: float = 0.02


class Curriculum:
    """Lessons and learning rates by step; `measured` takes the progress of the model."""

    def __init__(self, recipe: CurriculumRecipe) -> None:
        self._recipe = recipe
        self._mixture_from: int | None = None
        self._lookup_most = max(recipe.steps - recipe.mixture_steps, recipe.steps // 2)

    @property
    def steps(self) -> int:
        """Steps in all: at most, and exactly once the look-up is there."""
        first = self._lookup_most if self._mixture_from is None else self._mixture_from
        return min(self._recipe.steps, first + self._recipe.mixture_steps)

    def to_measure(self, step: int) -> bool:
        """Return whether what follows depends on a measurement after so many steps."""
        due = step % self._recipe.measure_every == 0 or step == self._lookup_most
        return due and self._mixture_from is None

    def measured(self, step: int, accuracy: float) -> None:
        """Take note that after `step` steps this share of look-ups is right."""
        if accuracy >= self._recipe.lookup_accuracy or step >= self._lookup_most:
            self._mixture_from = step

    def lesson(self, step: int) -> Lesson:
        """Return what step `step`, from 0, learns from."""
        begun = self._begun(step)
        short = self._recipe.short * max(0.0, 1 - step / self._recipe.short_steps)
        return Lesson(
            lookup=begun is None,
            short=short,
            small=begun is None or begun < self._recipe.small_steps,
        )

    def rate(self, step: int) -> float:
        """Share of the learning rate at step `step`: up, level, and down during the mixture."""
        warmup = min(1.0, (step + 1) / self._recipe.warmup_steps)
        done = (self._begun(step) or 0) / max(1, self.steps - (self._mixture_from or 0))
        return warmup * (1 - (1 - self._recipe.final_share) * min(1.0, done))

    def _begun(self, step: int) -> int | None:
        """Steps of the mixture before this one, None while the look-up is learned."""
        return None if self._mixture_from is None else step - self._mixture_from
