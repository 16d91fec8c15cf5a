"""Tool calls written as a model's family writes them: the inverse of `miner.duel.calls`.

Invariant: `parse_calls(family, write_calls(family, calls), offered)` returns `calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from miner.config.errors import ConfigurationError
from miner.duel.tools import ToolCall

Writer = Callable[[Sequence[ToolCall]], str]


def _blocks(calls: Sequence[ToolCall]) -> str:
    return "\n".join(f"<tool_call>\n{_object(call, 'arguments')}\n</tool_call>" for call in calls)


def _objects(calls: Sequence[ToolCall]) -> str:
    return ";".join(_object(call, "parameters") for call in calls)


def _list(calls: Sequence[ToolCall]) -> str:
    return f"[TOOL_CALLS] [{', '.join(_object(call, 'arguments') for call in calls)}]"


def _object(call: ToolCall, arguments: str) -> str:
    return f'{{"name": "{call.name}", "{arguments}": {call.arguments}}}'


WRITERS: dict[str, Writer] = {
    "qwen25": _blocks,
    "hermes": _blocks,
    "llama3": _objects,
    "mistral": _list,
}
"""By the names of `calls.PARSERS`."""


def write_calls(family: str, calls: Sequence[ToolCall]) -> str:
    """The text of a reply that consists of `calls`, whose arguments are JSON objects.

    Raises: `ConfigurationError` for a family that nothing is written for.
    """
    if family not in WRITERS:
        raise ConfigurationError(
            f"no replies can be written for models whose calls are read by {family!r}: leave "
            f"demonstrations out, or name one of {', '.join(WRITERS)} as environment.tool_parser"
        )
    return WRITERS[family](calls)
