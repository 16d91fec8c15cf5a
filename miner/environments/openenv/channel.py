"""The channel `openenv`: an environment behind an OpenEnv server, known by its seeds."""

from __future__ import annotations

from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource
from miner.environments.openenv.check import Findings, check
from miner.environments.openenv.environment import NAME, OpenEnvSource
from miner.environments.openenv.opening import open_openenv
from miner.environments.seeded_tasks import SeededTasks


class OpenEnvChannel:
    """Tasks, source and check of an OpenEnv environment."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self.tasks = SeededTasks(NAME)

    async def open(self) -> OpenEnvSource:
        """Connect, or start a server of our own. Raises: see `open_openenv`."""
        return await open_openenv(self._settings.servers, self._settings.openenv)

    async def check(self, source: EnvironmentSource) -> Findings:
        """Play without any thought. Raises: see `check`."""
        assert isinstance(source, OpenEnvSource)
        return await check(source)
