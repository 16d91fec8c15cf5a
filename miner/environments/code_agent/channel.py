"""The channel `code_agent`: problems that the policy may write code for."""

from __future__ import annotations

from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource
from miner.environments.code_agent.arithmetic import Arithmetic
from miner.environments.code_agent.environment import NAME, CodeAgentSource
from miner.environments.code_agent.form import Form
from miner.environments.trial import TrialFindings
from miner.executors import Executor, LocalSandbox
from miner.executors.e2b import E2BExecutor

TRIAL, EXPECTED = "print(6 * 7)", "42"


class CodeAgentChannel:
    """Tasks, source and check of problems with checkable answers."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings.code_agent
        self.tasks = Arithmetic()

    async def open(self) -> CodeAgentSource:
        """Where they are asked. Raises: `ConfigurationError` without a key or a sandbox."""
        executor: Executor = E2BExecutor() if self._settings.executor == "e2b" else LocalSandbox()
        return CodeAgentSource(
            self.tasks,
            executor,
            form=Form(self._settings.form),
            max_turns=self._settings.max_turns,
        )

    async def check(self, source: EnvironmentSource) -> TrialFindings:
        """Run a trial. Raises: `ConfigurationError`, `InfrastructureError`."""
        assert isinstance(source, CodeAgentSource)
        ran = await source.executor.run(TRIAL)
        if ran.text != EXPECTED:
            raise ConfigurationError(
                f"the executor {source.executor.name} answers {TRIAL} with {ran.text[:200]!r}: "
                f"expected {EXPECTED}; choose another environment.code_agent.executor"
            )
        return TrialFindings(
            channel=NAME,
            environment=self.tasks.name,
            reason=f"problems of {self.tasks.name}; code is run by {source.executor.name}, which "
            "runs a trial",
            scoring="The right answer scores 1, any other 0.",
        )
