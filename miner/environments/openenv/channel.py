"""The channel `openenv`: an environment behind an OpenEnv server, known by its seeds."""

from __future__ import annotations

import random
from typing import Final

from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource, EpisodeTask
from miner.environments.openenv.check import Findings, check
from miner.environments.openenv.environment import NAME, OpenEnvSource
from miner.environments.openenv.opening import open_openenv

HELD_OUT_SEEDS: Final = range(2**30)
TRAINING_SEEDS: Final = range(2**30, 2**31)
"""Apart, so that no held-out game is ever trained on, if the server heeds seeds."""


class OpenEnvTasks:
    """`TaskStream` of the seeds that a server is reset with."""

    name = NAME

    def training(self, index: int, seed: int) -> EpisodeTask:
        """See `TaskStream`."""
        return _task(random.Random(f"{NAME}/{seed}/{index}").choice(TRAINING_SEEDS))

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """See `TaskStream`."""
        drawn = random.Random(f"{NAME}/held-out/{base_seed}").sample(HELD_OUT_SEEDS, count)
        return [_task(seed) for seed in drawn]


def _task(seed: int) -> EpisodeTask:
    return EpisodeTask(NAME, task_id=seed, seed=seed, opponent="none")


class OpenEnvChannel:
    """Tasks, source and check of an OpenEnv environment."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self.tasks = OpenEnvTasks()

    async def open(self) -> OpenEnvSource:
        """Connect, or start a server of our own. Raises: see `open_openenv`."""
        return await open_openenv(self._settings.servers, self._settings.openenv)

    async def check(self, source: EnvironmentSource) -> Findings:
        """Play without any thought. Raises: see `check`."""
        assert isinstance(source, OpenEnvSource)
        return await check(source)
