"""The channel `code_agent`: problems that the policy may write code for."""

from pathlib import Path

from miner.channels.base import Channel
from miner.config.errors import ConfigurationError
from miner.environments.base import EnvironmentSource
from miner.environments.code_agent.arithmetic import Arithmetic
from miner.environments.code_agent.environment import NAME, CodeAgentSource
from miner.environments.code_agent.form import Form
from miner.environments.code_agent.own import OwnProblems, check_problems
from miner.environments.code_agent.problems import Problems
from miner.environments.findings import Findings
from miner.executors import Executor, LocalSandbox
from miner.executors.e2b import E2BExecutor

TRIAL, EXPECTED = "print(6 * 7)", "42"


class CodeAgentChannel(Channel):
    """Problems with checkable answers, and an executor for the code."""

    tasks: Problems

    def make_tasks(self) -> Problems:
        wanted = self.settings.code_agent
        try:
            self._tools = Path(wanted.tools_script).read_text() if wanted.tools_script else ""
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"environment.code_agent.tools_script {wanted.tools_script!r} cannot be read: "
                f"{error}"
            ) from None
        return OwnProblems(wanted.entry) if wanted.entry else Arithmetic()

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> CodeAgentSource:
        """Raise `ConfigurationError` without a key or a sandbox."""
        wanted = self.settings.code_agent
        executor: Executor = E2BExecutor() if wanted.executor == "e2b" else LocalSandbox()
        return CodeAgentSource(
            self.tasks,
            executor,
            form=Form(wanted.form),
            max_turns=wanted.max_turns,
            max_output_characters=wanted.max_output_characters,
            tools_script=self._tools,
        )

    async def check(self, source: EnvironmentSource) -> Findings:
        """Run a trial, and ask some problems.

        Raises: `ConfigurationError`, `InfrastructureError`.
        """
        assert isinstance(source, CodeAgentSource)
        await check_problems(self.tasks, source.called)
        ran = await source.executor.run(source.program(TRIAL))
        if ran.text != EXPECTED:
            raise ConfigurationError(
                f"the executor {source.executor.name} answers {TRIAL} with {ran.text[:200]!r}: "
                f"expected {EXPECTED}; correct environment.code_agent.tools_script, or choose "
                "another environment.code_agent.executor"
            )
        return Findings(
            channel=NAME,
            environment=self.tasks.name,
            reason=f"problems of {self.tasks.name}; code is run by {source.executor.name}, which "
            "runs a trial",
            scoring=f"Scores are those of {self.tasks.name}."
            if self.settings.code_agent.entry
            else "The right answer scores 1, any other 0.",
        )
