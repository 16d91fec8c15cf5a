"""A task from its question to its reward, over any shell.

Invariants:
* only a plain `cd FOLDER` moves the folder in which commands run. The benchmark takes all that
  follows `cd ` for the folder: what is joined to it runs once, and from then on the folder is none,
  so that every command is malformed until a plain `cd` (an absolute path) again;
* after the last turn the task is submitted as it stands;
* replies that call nothing take a turn and leave the last output as it was.
"""

from __future__ import annotations

import posixpath
from typing import Protocol

from miner.duel.intercode.conversation import MAX_TURNS, Answer, Conversation, Words
from miner.duel.intercode.reward import Changes, Outcome
from miner.executors.shell import Ran

MALFORMED = "Malformed command"
TIMED_OUT = "Command timed out"


class Shell(Protocol):
    """Bash on a file system of its own."""

    async def run(self, command: str, folder: str) -> Ran:
        """Run `command` in `folder`. Raises: `InfrastructureError` where the shell itself fails."""
        ...

    async def changes(self) -> Changes:
        """What commands have changed since the beginning. Raises: `InfrastructureError`."""
        ...

    async def close(self) -> None:
        """End it with all that still runs (idempotent)."""
        ...


class Session:
    """One task. `conversation` has the next request, until `answer` says that it is over."""

    def __init__(
        self, question: str, shell: Shell, words: Words, *, max_turns: int = MAX_TURNS
    ) -> None:
        self.conversation = Conversation(question, words)
        self._shell = shell
        self._max_turns = max_turns
        self._folder = "/"
        self._output = ""

    async def answer(self, answer: Answer, thought: str) -> bool:
        """Carry out a reply; whether the task is over. Raises: `InfrastructureError`."""
        if answer.submits:
            return True
        observation = self.conversation.refused(answer)
        if observation is None:
            assert answer.command is not None
            observation = self._output = await self._execute(answer.command)
        self.conversation.add(thought, answer, observation)
        return self.conversation.turn > self._max_turns

    async def outcome(self) -> Outcome:
        """What is left now. Raises: `InfrastructureError`."""
        return Outcome(await self._shell.changes(), self._output)

    async def _execute(self, command: str) -> str:
        if not command.startswith("cd"):
            return _shown(await self._shell.run(command, self._folder))
        _, found, target = command.partition("cd ")
        if not found:
            return MALFORMED
        folder = _resolved(self._folder, target.strip())
        ran = await self._shell.run(f"cd {folder}", "/")
        if ran.output is not None and ran.status == 0 and not ran.late:
            self._folder = folder
        return _shown(ran)


async def gold_outcome(command: str, shell: Shell) -> Outcome:
    """What the gold command leaves. Raises: `InfrastructureError`."""
    ran = await shell.run(command, "/")
    return Outcome(await shell.changes(), _shown(ran))


def _shown(ran: Ran) -> str:
    """What the benchmark shows: no output that could not be begun, or that is no text."""
    if ran.late:
        return TIMED_OUT
    try:
        return MALFORMED if ran.output is None else ran.output.decode("utf-8")
    except UnicodeDecodeError:
        return MALFORMED


def _resolved(folder: str, target: str) -> str:
    """Where `cd target` leads, by the path's text alone."""
    return "/" + posixpath.normpath(posixpath.join(folder, target)).lstrip("/")
