"""Reads the tool calls in a model's text as the serving engine does, by the model's family.

The tournament serves with SGLang and picks its parser by name; what each parser takes and leaves
follows SGLang's. A call of a tool that was not offered is left out, as there. vLLM's parsers agree
on well-formed replies and differ at the edges (a test holds the two against each other).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from miner.duel.tools import ToolCall

Parser = Callable[[str, Collection[str]], list[ToolCall]]

_BLOCK, _BLOCK_END = "<tool_call>\n", "\n</tool_call>"
_OPENING = re.compile(r"<tool_call>[ \t\r\n]*")
_PYTHON_TAG = "<|python_tag|>"
_MISTRAL = "[TOOL_CALLS"
_MISTRAL_LIST = "[TOOL_CALLS] ["
_MISTRAL_ARGUMENTS = "[ARGS"
_DECODER = json.JSONDecoder()


def _qwen25(text: str, offered: Collection[str]) -> list[ToolCall]:
    """Blocks of `<tool_call>`, each on lines of its own; a block that is no JSON is passed over."""
    calls: list[ToolCall] = []
    start = text.find(_BLOCK)
    while start != -1:
        begin = start + len(_BLOCK)
        end = text.find(_BLOCK_END, begin)
        if end == -1:
            break
        with suppress(json.JSONDecodeError):
            calls += _calls(json.loads(text[begin:end].strip()), offered)
        start = text.find(_BLOCK, end + len(_BLOCK_END))
    return calls


def _hermes(text: str, offered: Collection[str]) -> list[ToolCall]:
    """One JSON value after each `<tool_call>`, up to the first that is none."""
    calls: list[ToolCall] = []
    found = _OPENING.search(text)
    while found:
        try:
            value, end = _DECODER.raw_decode(text, found.end())
        except json.JSONDecodeError:
            break
        calls += _calls(value, offered)
        found = _OPENING.search(text, end)
    return calls


def _llama3(text: str, offered: Collection[str]) -> list[ToolCall]:
    """JSON objects with `;` between them, after a tag or from the first character on."""
    if _PYTHON_TAG in text:
        text = text.split(_PYTHON_TAG, maxsplit=1)[1]
    elif not text.startswith("{"):
        return []
    found: list[Any] = []
    at = 0
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text[at:])
        except json.JSONDecodeError:
            at = text.find('{"name":', at + 1)
            if at == -1:
                break
            continue
        found.append(value)
        at += end + 1
    return _calls(found, offered)


def _mistral(text: str, offered: Collection[str]) -> list[ToolCall]:
    """A JSON list after `[TOOL_CALLS]`, or one call as `[TOOL_CALLS]name[ARGS]{...}`."""
    start = text.find(_MISTRAL)
    if start == -1:
        return []
    at = text.find(_MISTRAL_LIST, start)
    if at != -1:
        return _calls(_DECODER.raw_decode(text, at + len(_MISTRAL_LIST) - 1)[0], offered)
    return _calls(_compact(text[start + len(_MISTRAL) :]), offered)


PARSERS: dict[str, Parser] = {
    "qwen25": _qwen25,
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
}
"""By the serving engine's names."""


def parse_calls(family: str, text: str, offered: Collection[str]) -> list[ToolCall]:
    """The calls of the tools `offered` in a reply's text; none where the engine's parser fails."""
    try:
        return PARSERS[family](text, offered)
    except (ValueError, RecursionError):
        return []


class _NotACall(ValueError):
    """What stands where a call should is none: the engine then reports no call at all."""


def _calls(found: Any, offered: Collection[str]) -> list[ToolCall]:
    """The calls among decoded values. Raises: `_NotACall`."""
    calls = []
    for value in found if isinstance(found, list) else [found]:
        if not isinstance(value, dict) or isinstance(value.get("name"), list | dict):
            raise _NotACall
        name = value.get("name")
        if isinstance(name, str) and name in offered:
            arguments = value.get("parameters") or value.get("arguments", {})
            calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    return calls


def _compact(text: str) -> dict[str, Any]:
    """`]name[ARGS]{...}` as an object. Raises: `ValueError`."""
    name, marker, arguments = text.removeprefix("]").partition(_MISTRAL_ARGUMENTS)
    if not marker:
        raise ValueError("no arguments")
    arguments = arguments.removeprefix("]").lstrip()
    if not arguments.startswith(("{", "[")):
        raise ValueError("arguments are no object")
    value, _ = _DECODER.raw_decode(arguments)
    return {"name": name.strip(), "arguments": value}
