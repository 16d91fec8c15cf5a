"""The channel `openenv`: an environment behind OpenEnv servers, known by its seeds."""

from __future__ import annotations

from pathlib import Path

from miner.channels.base import Channel
from miner.channels.base import Findings as AnyFindings
from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource
from miner.environments.openenv.check import Findings, check
from miner.environments.openenv.environment import NAME, OpenEnvSource
from miner.environments.openenv.opening import open_openenv
from miner.environments.seeded_tasks import SeededTasks


class OpenEnvChannel(Channel):
    """Seeds, and servers named by `environment.servers` or started here."""

    def __init__(
        self,
        settings: EnvironmentSettings,
        model: Path | None = None,
        published: Path | None = None,
    ) -> None:
        super().__init__(settings, model, published)
        self.tasks = SeededTasks(NAME)

    async def open(
        self, found: AnyFindings | None = None, *, patience_s: float = 0.0
    ) -> OpenEnvSource:
        return await open_openenv(self.settings.servers, self.settings.openenv)

    async def check(self, source: EnvironmentSource) -> Findings:
        assert isinstance(source, OpenEnvSource)
        return await check(source)
