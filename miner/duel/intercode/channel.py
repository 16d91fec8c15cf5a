"""The channel `intercode`: the benchmark's tasks from a folder of the user's."""

from __future__ import annotations

from miner.config.contract import INTERCODE_CHANNEL
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.duel.calls import PARSERS
from miner.duel.intercode.environment import InterCodeSource
from miner.duel.intercode.tasks import InterCodeTasks
from miner.environments.base import EnvironmentSource
from miner.environments.trial import TrialFindings
from miner.executors.shell import RealmShell

TRIAL, EXPECTED = "echo $((6 * 7))", b"42\n"


class InterCodeChannel:
    """Tasks, source and check. Raises: `ConfigurationError` without tasks or a parser."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        if settings.tasks is None:
            raise ConfigurationError(
                "InterCode's tasks are not part of this repository: set environment.tasks to a "
                "folder with the benchmark's nl2bash_fs_1.json to 4 and their file systems"
            )
        if settings.tool_parser is None:
            raise ConfigurationError(
                "InterCode is played by tool calls: set environment.tool_parser to what will read "
                f"the model's, one of {', '.join(PARSERS)}"
            )
        self._folder = settings.tasks
        self._family = settings.tool_parser
        self.tasks = InterCodeTasks(settings.tasks)

    async def open(self) -> InterCodeSource:
        """Where they are played: in shells of this machine."""
        return InterCodeSource(self.tasks, RealmShell.start, family=self._family)

    async def check(self, source: EnvironmentSource) -> TrialFindings:
        """Run a trial. Raises: `ConfigurationError`, `InfrastructureError`."""
        shell = await RealmShell.start(None)
        try:
            ran = await shell.run(TRIAL, "/")
        finally:
            await shell.close()
        if ran.output != EXPECTED:
            raise ConfigurationError(
                f"the shell answers {TRIAL} with {ran.output!r}: expected {EXPECTED!r}; bash or "
                "its libraries are not where other programs of this machine are (/usr, /bin, /lib)"
            )
        return TrialFindings(
            channel=INTERCODE_CHANNEL,
            environment=INTERCODE_CHANNEL,
            reason=f"{len(self.tasks)} tasks of {self._folder}; a locked shell runs a trial; the "
            "sentences of the requests are our own",
        )
