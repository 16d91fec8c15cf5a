"""InterCode as an environment: each turn a fresh chat with two tools, over a shell of its own.

Invariants:
* requests, calls and rewards are the session's (`miner.duel.intercode.session`);
* each episode has a shell of its own, and so has each gold command, which runs once for a task;
* a shell that fails is a fault of infrastructure, never a score.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from miner.config.contract import INTERCODE_CHANNEL
from miner.duel.calls import parse_calls
from miner.duel.intercode.conversation import EXECUTE, SUBMIT, Words, read, tools
from miner.duel.intercode.reward import Outcome, graded
from miner.duel.intercode.session import Session, Shell, gold_outcome
from miner.duel.intercode.tasks import InterCodeTasks, Task
from miner.duel.tools import shaped, without_thoughts
from miner.environments.base import EpisodeTask, InProcess, Observation, Transition
from miner.environments.errors import ProtocolError

OpenShell = Callable[[Path | None], Awaitable[Shell]]
"""Makes a shell on the files in an archive or folder."""

_CALLS = {
    "qwen25": "<tool_call>",
    "hermes": "<tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
}
"""Where calls begin, by the family of the parser."""
_MARKS = re.compile(r"<\|[^<>|]*\|>|</s>")
"""Special tokens that end a reply."""


class InterCodeSource(InProcess):
    """Opens episodes of tasks in a folder.

    Args:
        tasks: what there is to do.
        shell: makes shells.
        family: of the parser that reads the policy's calls, one of `calls.PARSERS`.
    """

    name = INTERCODE_CHANNEL
    capacity = 16
    """Each episode has processes and files of its own in memory."""

    def __init__(self, tasks: InterCodeTasks, shell: OpenShell, *, family: str) -> None:
        self.tasks = tasks
        self.shell = shell
        self.family = family
        self.words = Words()
        self._gold: dict[int, asyncio.Task[Outcome]] = {}

    def open(self, avoid: Collection[str] = ()) -> InterCode:
        """A fresh environment; `avoid` cannot apply to a channel without servers."""
        return InterCode(self)

    async def gold(self, number: int) -> Outcome:
        """What the gold command of task `number` leaves. Raises: `InfrastructureError`."""
        running = self._gold.get(number)
        if running is None or (running.done() and (running.cancelled() or running.exception())):
            task = self.tasks.task(number)
            running = self._gold[number] = asyncio.ensure_future(self._run_gold(task))
        return await asyncio.shield(running)

    async def _run_gold(self, task: Task) -> Outcome:
        shell = await self.shell(task.files)
        try:
            return await gold_outcome(task.gold, shell)
        finally:
            await shell.close()


class InterCode:
    """One episode at a time."""

    server = INTERCODE_CHANNEL

    def __init__(self, source: InterCodeSource) -> None:
        self._source = source
        self._shell: Shell | None = None
        self._session: Session | None = None
        self._number = 0

    async def reset(self, task: EpisodeTask) -> Observation:
        """Ask `task`. Raises: `ConfigurationError`, `InfrastructureError`."""
        await self.close()
        source = self._source
        self._number = task.task_id
        asked = source.tasks.task(task.task_id)
        self._shell = await source.shell(asked.files)
        self._session = Session(asked.question, self._shell, source.words)
        return Observation(self._session.conversation.messages(), tools=self._tools())

    async def step(self, text: str) -> Transition:
        """Carry out the reply's first call. Raises: `EnvironmentFault`."""
        session = self._session
        if session is None:
            raise ProtocolError(
                "no episode is open: call reset() before step()", server=self.server
            )
        family = self._source.family
        answer = read(parse_calls(family, text, {EXECUTE, SUBMIT}))
        if not await session.answer(answer, spoken(family, text)):
            messages, fault = session.conversation.messages(), answer.fault
            return Transition(
                messages, 0.0, False, valid=not fault, fresh=True, tools=self._tools(), fault=fault
            )
        outcome = await session.outcome()
        await self.close()
        reward = graded(outcome, await self._source.gold(self._number)).reward
        # Graded as it stands, whatever the last reply was: no reply forfeits a task.
        return Transition((), reward, done=True, score=reward)

    async def close(self) -> None:
        """Drop the episode and end its shell (idempotent)."""
        shell, self._shell, self._session = self._shell, None, None
        if shell is not None:
            await shell.close()

    def _tools(self) -> tuple[dict[str, object], ...]:
        return tuple(shaped(tools(self._source.words)))


def spoken(family: str, text: str) -> str:
    """What a reply says before its calls, as the serving engine hands it over."""
    said = _MARKS.sub("", text.partition(_CALLS[family])[0])
    return "" if family == "llama3" and said.startswith("{") else without_thoughts(said)
