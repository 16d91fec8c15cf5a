"""The channel `own`: the class that `environment.entry` names, played in this process."""

from miner.channels.base import Channel
from miner.environments.base import EnvironmentSource
from miner.environments.findings import Findings
from miner.environments.own.check import check_environment
from miner.environments.own.entry import load_entry
from miner.environments.own.source import OwnSource
from miner.environments.seeded_tasks import SeededTasks


class OwnChannel(Channel):
    """Tasks and source of a user's class."""

    def make_tasks(self) -> SeededTasks:
        self._kind = load_entry(self.settings.entry)
        return SeededTasks(self._kind.__name__, self._kind.problems)

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> EnvironmentSource:
        return OwnSource(self._kind)

    async def check(self, source: EnvironmentSource) -> Findings:
        return await check_environment(self._kind, source, self.tasks)
