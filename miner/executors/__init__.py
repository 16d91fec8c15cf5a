"""Executors of a policy's code: one `Executor` protocol, a local sandbox and E2B behind it."""

from miner.executors.base import CodeFailure, Execution, Executor, Limits
from miner.executors.sandbox import LocalSandbox

__all__ = ["CodeFailure", "Execution", "Executor", "Limits", "LocalSandbox"]
