"""E2B: code runs in remote sandboxes, through E2B's own client package.

Invariants:
* each run has a new sandbox, without access to the internet, which is killed afterwards: no
  run finds what another left behind;
* a run that hangs is the code's failure only if its sandbox still answers, else the executor's;
* a run that the server within its sandbox reports as lost is the executor's failure;
* the key is handed to the client and appears in no message.
"""

import asyncio
import importlib
import os
import re
from math import ceil
from types import ModuleType
from typing import Any, NoReturn

from miner.config.errors import ConfigurationError
from miner.environments.errors import InfrastructureError
from miner.executors.base import CodeFailure, Execution, FailureKind, Limits, too_long

NAME = "e2b"
KEY_VARIABLE = "E2B_API_KEY"
PACKAGE = "e2b_code_interpreter"
LINGER_SECONDS = 60
"""Seconds after its run after which a sandbox ends if it could not be killed."""

_LOST = frozenset({"WebSocketError", "UnexpectedEndOfExecution", "ExecutionAborted"})
"""Errors, without a traceback, of E2B's server in the sandbox itself."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class E2BExecutor:
    """Runs Python in E2B's sandboxes.

    Args:
        api_key: by default what `E2B_API_KEY` holds.
        template: of the sandboxes; by default E2B's code interpreter.
        at_once: sandboxes at the same time; E2B's plans bound it.
        request_seconds: patience with one request to E2B itself.

    Raises: `ConfigurationError` without a key or without the package.
    """

    name = NAME

    def __init__(
        self,
        api_key: str | None = None,
        *,
        template: str | None = None,
        limits: Limits | None = None,
        at_once: int = 20,
        request_seconds: float = 30.0,
    ) -> None:
        self._key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not self._key:
            raise ConfigurationError(
                f"E2B needs a key: set {KEY_VARIABLE}, or take the local sandbox"
            )
        self.limits = limits or Limits()
        self._package = _package()
        self._template = template
        self._request_seconds = request_seconds
        self._places = asyncio.Semaphore(at_once)

    async def run(self, code: str) -> Execution:
        """Run `code` in a fresh sandbox.

        Raises: `ConfigurationError` for a key that is refused, `InfrastructureError` otherwise.
        """
        refused = too_long(code, self.limits)
        if refused is not None:
            return refused
        async with self._places:
            box = await self._sandbox()
            try:
                return await self._run_in(box, code)
            finally:
                await self._kill(box)

    async def close(self) -> None:
        """Nothing is kept between runs."""

    async def _sandbox(self) -> Any:
        try:
            async with asyncio.timeout(self._request_seconds):
                return await self._package.AsyncSandbox.create(
                    self._template,
                    timeout=ceil(self.limits.seconds) + LINGER_SECONDS,
                    allow_internet_access=False,
                    request_timeout=self._request_seconds,
                    api_key=self._key,
                )
        except Exception as error:
            self._raise_typed("could not make a sandbox", error)

    async def _run_in(self, box: Any, code: str) -> Execution:
        timeout_kind = importlib.import_module("e2b").TimeoutException
        limit = self.limits.seconds
        try:
            async with asyncio.timeout(limit + self._request_seconds):
                ran = await box.run_code(code, timeout=limit, request_timeout=self._request_seconds)
        except timeout_kind as error:
            if not await self._answers(box):
                self._raise_typed("lost the sandbox while code ran", error)
            return Execution("", CodeFailure("time", f"stopped: not finished after {limit:g} s"))
        except Exception as error:
            self._raise_typed("failed while code ran", error)
        return self._execution(ran)

    def _execution(self, ran: Any) -> Execution:
        if ran.error and ran.error.name in _LOST and not ran.error.traceback:
            raise InfrastructureError(f"E2B lost a run: {ran.error.value[:300]}", server=NAME)
        shown = [*ran.logs.stdout, *(f"{r.text}\n" for r in ran.results if r.text)]
        output = "".join(shown)
        most = self.limits.output_bytes
        if len(output.encode("utf-8", "replace")) > most:
            cut = output.encode("utf-8", "replace")[:most].decode("utf-8", "replace")
            return Execution(
                cut, CodeFailure("output", f"stopped: more than {most:,} bytes printed")
            )
        if ran.error is None:
            return Execution(output)
        message = _COLOUR.sub("", f"{ran.error.name}: {ran.error.value}")[:most]
        kind: FailureKind = "memory" if ran.error.name == "MemoryError" else "exception"
        return Execution(output, CodeFailure(kind, message))

    async def _answers(self, box: Any) -> bool:
        try:
            async with asyncio.timeout(self._request_seconds):
                return bool(await box.is_running(request_timeout=self._request_seconds))
        except Exception:  # any error of the client: there was no answer
            return False

    async def _kill(self, box: Any) -> None:
        try:
            async with asyncio.timeout(self._request_seconds):
                await box.kill(request_timeout=self._request_seconds)
        except Exception:  # it ends later, and the run has its result
            return

    def _raise_typed(self, what: str, error: Exception) -> NoReturn:
        status = getattr(error, "status_code", None)
        message = (str(error) or type(error).__name__).replace(self._key, "***")[:300]
        if status in (401, 403) or type(error).__name__ == "AuthenticationException":
            raise ConfigurationError(
                f"E2B refuses the key ({message}): check {KEY_VARIABLE}"
            ) from None
        raise InfrastructureError(f"E2B {what}: {message}", server=NAME) from None


def _package() -> ModuleType:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise ConfigurationError(
            f"E2B's client is not installed ({error}): pip install e2b-code-interpreter",
        ) from error
