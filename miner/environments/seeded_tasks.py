"""Tasks of an environment that is known by its seeds alone.

Invariant: no held-out seed or problem is ever trained on, for all seeds of run and list (as far
as the environment heeds seeds).
"""

import random

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.environments.split import split

_MIDDLE = 2**30
"""Held-out seeds are from below, training's from here on."""


class SeededTasks:
    """`TaskStream` of seeds, or of the numbers of problems where these are limited."""

    def __init__(self, name: str, problems: int | None = None) -> None:
        self.name = name
        self._problems = problems
        if self._problems is not None:
            self._held_out, self._trained = split(range(self._problems))

    def training(self, index: int, seed: int) -> EpisodeTask:
        """Raises: `ConfigurationError` where all there is is held out."""
        rng = random.Random(f"{self.name}/{seed}/{index}")
        if self._problems is not None:
            if not self._trained:
                raise ConfigurationError(
                    f"one problem of {self.name} is not enough to train: it is held out"
                )
            return self._task(rng.choice(self._trained))
        return self._task(rng.randrange(_MIDDLE, 2 * _MIDDLE))

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        rng = random.Random(f"{self.name}/held-out/{base_seed}")
        if self._problems is None:
            return [self._task(seed) for seed in rng.sample(range(_MIDDLE), count)]
        numbers = rng.sample(self._held_out, min(count, len(self._held_out)))
        return [self._task(number) for number in numbers]

    def _task(self, seed: int) -> EpisodeTask:
        return EpisodeTask(self.name, task_id=seed, seed=seed, opponent="none")
