"""The channel `own`: the class that `environment.entry` names, played in this process."""

from __future__ import annotations

from pathlib import Path

from miner.channels.base import Channel, Findings
from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource
from miner.environments.own.check import OwnFindings, check_environment
from miner.environments.own.entry import load_entry
from miner.environments.own.source import OwnSource
from miner.environments.seeded_tasks import SeededTasks


class OwnChannel(Channel):
    """Tasks and source of a user's class."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        model: Path | None = None,
        published: Path | None = None,
    ) -> None:
        super().__init__(settings, model, published)
        self._kind = load_entry(settings.entry)
        self.tasks = SeededTasks(self._kind.__name__, self._kind.problems)

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> EnvironmentSource:
        return OwnSource(self._kind)

    async def check(self, source: EnvironmentSource) -> OwnFindings:
        return await check_environment(self._kind, source, self.tasks)
