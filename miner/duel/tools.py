"""Tool schemas of a request, in the tournament's order, and reading the calls that come back."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from miner.config.contract import MOVE_TOOL as MOVE
from miner.duel.memory import LONG_TERM, MEMORY_TOOLS, REWRITE, SLOTS, as_integer
from miner.duel.wording import ToolWording, Wording
from miner.encodable import encodable
from miner.thoughts import without_closed

Schema = dict[str, Any]

_THOUGHTS = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_UNFINISHED = re.compile(r"<think(?:ing)?>.*", re.DOTALL | re.IGNORECASE)
_CLOSES = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_ENDS = re.compile(r"</think(?:ing)?>")
_SHORT = 64
"""Arguments of moves are shorter; longer ones are not cached."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a serving engine hands it over: `arguments` is JSON, or what a model wrote."""

    name: str
    arguments: str

    def decoded(self) -> Mapping[str, Any]:
        """The arguments; empty unless they are a JSON object. Texts lose thoughts and margins."""
        return (_decoded if len(self.arguments) < _SHORT else _decode)(self.arguments)


@lru_cache(maxsize=512)
def move_call(action: int) -> ToolCall:
    """The call that plays `action`."""
    return ToolCall(MOVE, f'{{"action_id": {action}}}')


def note_call(note: str) -> ToolCall:
    """The call that writes a note on the opponent into the first long-term slot."""
    return ToolCall(f"{LONG_TERM}_{REWRITE}", json.dumps({"slot": 1, "content": note}))


def move_of(arguments: Mapping[str, Any], legal: Sequence[int]) -> int | None:
    """The legal action that a decoded move's call names, if it names one."""
    action = as_integer(arguments.get("action_id"))
    return action if action is not None and action in legal else None


def turn_tools(wording: Wording, legal: Sequence[int]) -> list[Schema]:
    """Schemas of a turn's tools: the memory tools, then the move's."""
    words = wording.tools
    before, after = words.move
    properties = {
        "action_id": {"description": words.action_id, "type": "integer", "enum": list(legal)}
    }
    description = f"{before}{', '.join(map(str, legal))}{after}"
    return [*reflection_tools(wording), _function(MOVE, description, properties)]


def offered_tools(tools: Sequence[Schema]) -> dict[str, Mapping[str, Any]]:
    """The tools of a request by name, each with the schemas of its parameters."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: function["parameters"]["properties"] for function in functions}


def reflection_tools(wording: Wording) -> list[Schema]:
    """Schemas of a reflection's tools: those of the memory."""
    return list(_memory_tools(wording.tools))


def shaped(tools: Sequence[Schema]) -> list[Schema]:
    """`tools` of a request as SGLang hands them to a template: keys in its order, with `strict`.

    Templates print what they get, so the shape is part of the prompt.
    """
    return [
        {
            "type": "function",
            "function": {
                "description": tool["function"]["description"],
                "name": tool["function"]["name"],
                "parameters": tool["function"]["parameters"],
                "strict": False,
            },
        }
        for tool in tools
    ]


def without_thoughts(text: str) -> str:
    """`text` as the tournament's client reads it, in three cuts and without space around it.

    Whole thoughts go; of what is left, all up to the last end of a thought whose beginning the
    template has written; and a thought that never ends. What is left is `encodable`.
    """
    left = _ENDS.split(without_closed(text, _THOUGHTS, _CLOSES))[-1]
    return encodable(_UNFINISHED.sub("", left).strip())


@lru_cache(maxsize=8)
def _memory_tools(words: ToolWording) -> tuple[Schema, ...]:
    schemas = []
    for (name, (area, _)), description in zip(MEMORY_TOOLS.items(), words.memory, strict=True):
        slot = {"description": words.slot, "type": "integer", "minimum": 1, "maximum": SLOTS[area]}
        properties = {
            "slot": slot,
            "content": {"description": words.content, "type": "string"},
        }
        schemas.append(_function(name, description, properties))
    return tuple(schemas)


def _decode(text: str) -> Mapping[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(arguments, dict):
        return {}
    return {name: _plain(value) for name, value in arguments.items()}


_decoded = lru_cache(maxsize=512)(_decode)


def _function(name: str, description: str, properties: Schema) -> Schema:
    """Keys in the order in which the tournament sends them: templates print them so."""
    parameters = {"properties": properties, "required": list(properties), "type": "object"}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return without_thoughts(value) if value else value
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), sort_keys=True)
    return value
