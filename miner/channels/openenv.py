"""The channel `openenv`: an environment behind OpenEnv servers, known by its seeds."""

from collections.abc import Mapping

from miner.channels.base import Channel
from miner.distributed.launch import world_size
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
        """On the servers that the check has played on, with the places that it found."""
        limits: Mapping[str, int] = found.for_opening if found else {}
        urls = tuple(limits) or self.settings.servers
        source = await open_openenv(urls, self.settings.openenv, patience_s=patience_s)
        if limits:
            source.share(limits, world_size())
        return source

    async def check(self, source: EnvironmentSource) -> Findings:
        assert isinstance(source, OpenEnvSource)
        findings = await check(source)
        source.share(findings.for_opening, world_size())
        return findings
