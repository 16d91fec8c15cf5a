"""An episode of an agent: replies with code are run and answered, one without is the answer.

Invariants:
* the score comes from the last reply alone, never from what it made a program print before;
* an episode has `max_turns` replies at most; whose last one still holds code scores 0;
* a policy whose programs print too much pays for it: output is cut, and a chat that it fills
  scores 0;
* code that fails is shown to the policy; an executor that fails ends the episode as a typed error;
* a user's problems are asked and graded on another thread: one that hangs loses its episode alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask, InProcess, Message, Observation, Transition
from miner.environments.code_agent.form import Form, Tags
from miner.environments.code_agent.own import CodeProblems, OwnProblems
from miner.environments.code_agent.problems import Problem, Problems
from miner.environments.errors import InfrastructureError, no_episode
from miner.environments.outages import growing_pauses
from miner.environments.own.worker import OverdueError, Worker
from miner.executors.base import Execution, Executor

NAME = "code_agent"
TAGS = Tags()
RERUN_S = 10.0
"""For so long code is run again by an executor that fails."""
METHOD_S = 60.0
"""A user's `question` or `grade` that takes half as long again is given up."""


class CodeAgentSource(InProcess):
    """Opens episodes in which the policy may run code.

    Args:
        problems: its problems.
        executor: the executor that runs its code; it belongs to the source, which closes it.
        form: placement of outputs.
        max_turns: replies of one episode, the answer included.
        max_output_characters: of a program's output that are shown.
        tools_script: code that is run before each program's own, in the same run.
    """

    name = NAME
    capacity = 256
    """The executor itself bounds how many run at once."""

    def __init__(
        self,
        problems: Problems,
        executor: Executor,
        *,
        form: Form = Form.MESSAGE,
        max_turns: int = 4,
        max_output_characters: int = 1000,
        tools_script: str = "",
    ) -> None:
        self.problems = problems
        self.executor = executor
        self.form = form
        self.max_turns = max_turns
        self.max_output_characters = max_output_characters
        self.tools_script = tools_script
        self.servers = (executor.name,)
        own = isinstance(problems, OwnProblems)
        self._worker = Worker(CodeProblems, METHOD_S) if own else None

    def program(self, code: str) -> str:
        """`code` behind the tools."""
        return f"{self.tools_script}\n{code}" if self.tools_script else code

    async def called(
        self, played: tuple[object, ...], method: Callable[..., Any], *given: object
    ) -> Any:
        """Return what `method`, of the problems or one of them, returns; a user's on its thread.

        Args:
            played: number and reply; those on which a method hung are not played again.

        Raises: `EnvironmentFault`.
        """
        if self._worker is None:
            return method(*given)
        try:
            return await self._worker.call(method, *given, played=played)
        except OverdueError as error:
            raise InfrastructureError(str(error), server=self.problems.name) from None

    def open(self, avoid: Collection[str] = ()) -> CodeAgent:
        """A fresh environment; there is one executor, so `avoid` cannot apply."""
        return CodeAgent(self)

    async def health_error(self, server: str) -> str:
        """Run nothing; "" also where a setting is at fault, which the next episode reports."""
        with suppress(ConfigurationError):
            try:
                await self.executor.run("")
            except InfrastructureError as error:
                return str(error)
        return ""

    async def close(self) -> None:
        """End the executor, and let the thread of the problems end."""
        if self._worker is not None:
            self._worker.close()
        await self.executor.close()


class CodeAgent:
    """One episode at a time."""

    def __init__(self, source: CodeAgentSource) -> None:
        self._source = source
        self._problem: Problem | None = None
        self._number = self._turns = 0

    @property
    def server(self) -> str:
        """Executor of the code."""
        return self._source.executor.name

    async def reset(self, task: EpisodeTask) -> Observation:
        """Ask the problem of `task`. Raises: `EnvironmentFault`."""
        number, problems = task.task_id, self._source.problems
        self._problem = await self._source.called((number,), problems.problem, number)
        self._number, self._turns = number, 0
        question: Message = {"role": "user", "content": self._problem.question}
        return Observation((question,), stop=(TAGS.code_end,), too_long_forfeits=True)

    async def step(self, text: str) -> Transition:
        """Run the reply's code, or grade it as the answer. Raises: `EnvironmentFault`."""
        problem, source = self._problem, self._source
        if problem is None:
            raise no_episode(NAME)
        self._turns += 1
        code = TAGS.code(text)
        if code is None:
            await self.close()
            score = await source.called((self._number, text), problem.grade, text)
            return Transition((), score, done=True, score=score)
        if self._turns == source.max_turns:
            await self.close()
            return Transition((), 0.0, done=True, score=0.0, valid=False)
        ran = await run_again(source.executor, source.program(code))
        output = TAGS.output(ran.text, source.max_output_characters)
        if source.form is Form.INLINE:
            return Transition((), 0.0, done=False, appended=output)
        return Transition(({"role": "user", "content": output},), 0.0, done=False)

    async def close(self) -> None:
        """Drop the episode (idempotent)."""
        self._problem = None


async def run_again(executor: Executor, code: str) -> Execution:
    """Run `code`, again where the executor fails, for `RERUN_S` seconds.

    An episode that is played again instead might write no code at all.
    Raises: `InfrastructureError` of the last run, `ConfigurationError`.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + RERUN_S
    for pause in growing_pauses():
        try:
            return await executor.run(code)
        except InfrastructureError:
            if clock() + pause > until:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("unreachable")
