"""The channel `intercode`: the benchmark's tasks from a folder of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from miner.config.contract import INTERCODE_CHANNEL
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.duel.calls import PARSERS
from miner.duel.intercode.environment import InterCodeSource
from miner.duel.intercode.tasks import InterCodeTasks
from miner.environments.base import EnvironmentSource
from miner.executors.shell import RealmShell

TRIAL, EXPECTED = "echo $((6 * 7))", b"42\n"


@dataclass(frozen=True, slots=True)
class InterCodeFindings:
    """Which tasks, and that a shell works."""

    folder: Path
    tasks: int

    @property
    def reason(self) -> str:
        """What was found, in a sentence."""
        return (
            f"{self.tasks} tasks of {self.folder}; a locked shell runs a trial; the sentences of "
            "the requests are our own"
        )

    def to_json(self) -> dict[str, Any]:
        """For `probe.json`."""
        return {
            "environment": INTERCODE_CHANNEL,
            "channel": INTERCODE_CHANNEL,
            "reason": self.reason,
        }

    def shown(self) -> Text:
        """For a terminal."""
        return Text(f"channel {INTERCODE_CHANNEL}: {self.reason}")


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

    async def check(self, source: EnvironmentSource) -> InterCodeFindings:
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
        return InterCodeFindings(self._folder, len(self.tasks))
