"""The interface's executers: a list of programs in, a list of texts out, in the same order.

Invariant: a text is what a program printed and how it failed, if it did; an executor that stays
down raises and is never a text.
"""

import asyncio
from collections.abc import Sequence

from miner.background_loop import BackgroundLoop
from miner.environments.code_agent.environment import run_again
from miner.executors.base import Execution, Executor
from miner.executors.e2b import E2BExecutor
from miner.executors.sandbox import LocalSandbox


class Executer:
    """An executor for synchronous callers."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loop = BackgroundLoop("executer")

    def execute(self, codes: Sequence[str]) -> list[str]:
        """Run each program, several at once; the texts are in the programs' order.

        One that its executor fails to run is run again for ten seconds.
        Raises: `InfrastructureError`, `ConfigurationError`.
        """
        return [ran.text for ran in self._loop.run(self._all(codes))]

    def close(self) -> None:
        """End the executor (idempotent)."""
        if self._loop.alive:
            self._loop.run(self._executor.close())
            self._loop.close()

    async def _all(self, codes: Sequence[str]) -> list[Execution]:
        return await asyncio.gather(*(run_again(self._executor, code) for code in codes))


class LocalExecuter(Executer):
    """Runs programs in this machine's sandbox."""

    def __init__(self) -> None:
        super().__init__(LocalSandbox())


class E2BExecuter(Executer):
    """Runs programs in E2B's sandboxes.

    Args:
        api_key: of E2B.
        template: of the sandboxes.
        max_concurrent: sandboxes at once.
    """

    def __init__(
        self, api_key: str | None = None, template: str | None = None, max_concurrent: int = 20
    ) -> None:
        super().__init__(E2BExecutor(api_key, template=template, at_once=max_concurrent))
