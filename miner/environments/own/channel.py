"""The channel `own`: the class that `environment.entry` names."""

from __future__ import annotations

from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource
from miner.environments.own.check import OwnFindings, check_environment
from miner.environments.own.entry import load_entry
from miner.environments.own.source import OwnSource
from miner.environments.seeded_tasks import SeededTasks


class OwnChannel:
    """Tasks, source and check of a person's own class. Raises: `ConfigurationError`."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._kind = load_entry(settings.entry)
        self.tasks = SeededTasks(self._kind.__name__, self._kind.problems)

    async def open(self) -> EnvironmentSource:
        """Where it is played: in this process."""
        return OwnSource(self._kind)

    async def check(self, source: EnvironmentSource) -> OwnFindings:
        """Play a few episodes. Raises: `ConfigurationError`."""
        return await check_environment(self._kind, source, self.tasks)
