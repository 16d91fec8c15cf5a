"""The channel `openenv`: an environment behind OpenEnv servers, known by its seeds."""

from miner.channels.base import Channel
from miner.environments.base import EnvironmentSource
from miner.environments.findings import Findings
from miner.environments.openenv.check import check
from miner.environments.openenv.environment import NAME, OpenEnvSource
from miner.environments.openenv.opening import open_openenv
from miner.environments.seeded_tasks import SeededTasks


class OpenEnvChannel(Channel):
    """Seeds, and servers named by `environment.servers` or started here."""

    def make_tasks(self) -> SeededTasks:
        return SeededTasks(NAME)

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> OpenEnvSource:
        return await open_openenv(self.settings.servers, self.settings.openenv)

    async def check(self, source: EnvironmentSource) -> Findings:
        assert isinstance(source, OpenEnvSource)
        return await check(source)
