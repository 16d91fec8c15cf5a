"""The one protocol behind which every executor hides: code in, output or the code's failure out.

Invariants:
* code that fails is an `Execution` with a `failure`, which the policy is shown;
* an executor that fails raises an `EnvironmentFault` and has no result: nothing that code does can
  make its executor fail, and no failure of an executor ever reads like one of the code's;
* a run begins without anything that an earlier run left behind.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

FailureKind = Literal["exception", "time", "memory", "output", "exit", "crash", "size"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run.

    Attributes:
        seconds: wall time.
        memory_bytes: address space (the local sandbox; remote ones have their own).
        output_bytes: bytes kept of each of stdout and stderr; more ends the run.
        code_bytes: longest code that is run at all.
    """

    seconds: float = 5.0
    memory_bytes: int = 256 * 1024**2
    output_bytes: int = 16 * 1024
    code_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True)
class CodeFailure:
    """Failure of the code.

    Attributes:
        kind: an "exception" it raised, a limit it ran into ("time", "memory", "output", "size"),
            an "exit" status other than 0, or a "crash" (a signal).
        message: for the policy: a traceback without the executor's own frames, or a
            sentence.
    """

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of a run.

    Attributes:
        output: printed text, cut at `Limits.output_bytes`.
        failure: None where the code ran to its end.
    """

    output: str
    failure: CodeFailure | None = None

    @property
    def text(self) -> str:
        """Text for the policy: the output, and then how the code failed, if it did."""
        parts = [self.output.rstrip("\n"), self.failure.message if self.failure else ""]
        return "\n".join(part for part in parts if part)


class Executor(Protocol):
    """Runs code; many runs may be in flight. To be used from one event loop."""

    @property
    def name(self) -> str:
        """Name in messages and reports."""

    async def run(self, code: str) -> Execution:
        """Run `code` as a separate program.

        Raises: `InfrastructureError` where the executor failed, `ConfigurationError` where the user
            must change something (a key that is refused, a kernel without seccomp).
        """

    async def close(self) -> None:
        """End everything that still runs (idempotent, never raises)."""


def too_long(code: str, limits: Limits) -> Execution | None:
    """The failure of code that is longer than `limits` allow, else None."""
    size = len(code.encode("utf-8", "replace"))
    if size <= limits.code_bytes:
        return None
    message = f"the code has {size:,} bytes, at most {limits.code_bytes:,} are run"
    return Execution("", CodeFailure("size", message))
