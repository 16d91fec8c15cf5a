"""Forms whose calls are JSON objects: hermes, qwen25, llama3, mistral."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from miner.duel.calls.found import Call, Found, Offered, as_json, between

_BLOCK, _BLOCK_END = "<tool_call>\n", "\n</tool_call>"
_OPENING = re.compile(r"<tool_call>[ \t\r\n]*")
_PYTHON_TAG = "<|python_tag|>"
_MISTRAL = "[TOOL_CALLS"
_MISTRAL_LIST = "[TOOL_CALLS] ["
_MISTRAL_ARGUMENTS = "[ARGS"
_DECODER = json.JSONDecoder()


def parse_qwen25(text: str, offered: Offered) -> list[Found]:
    """Blocks of `<tool_call>`, each on separate lines; a block that is no JSON is skipped."""
    calls: list[Found] = []
    for block in between(text, _BLOCK, _BLOCK_END):
        try:
            value = json.loads(block.strip())
        except json.JSONDecodeError:
            value = []
        calls += calls_in(value)
    return calls


def parse_hermes(text: str, offered: Offered) -> list[Found]:
    """One JSON value after each `<tool_call>`, up to the first that is not JSON."""
    calls: list[Found] = []
    found = _OPENING.search(text)
    while found:
        try:
            value, end = _DECODER.raw_decode(text, found.end())
        except json.JSONDecodeError:
            break
        calls += calls_in(value)
        found = _OPENING.search(text, end)
    return calls


def parse_llama3(text: str, offered: Offered) -> list[Found]:
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
    return list(calls_in(found))


def parse_mistral(text: str, offered: Offered) -> list[Found]:
    """A JSON list after `[TOOL_CALLS]`, or one call as `[TOOL_CALLS]name[ARGS]{...}`."""
    start = text.find(_MISTRAL)
    if start == -1:
        return []
    at = text.find(_MISTRAL_LIST, start)
    if at != -1:
        return list(calls_in(_DECODER.raw_decode(text, at + len(_MISTRAL_LIST) - 1)[0]))
    name, marker, arguments = (
        text[start + len(_MISTRAL) :].removeprefix("]").partition(_MISTRAL_ARGUMENTS)
    )
    arguments = arguments.removeprefix("]").lstrip()
    if not (marker and arguments.startswith(("{", "["))):
        return []
    return [(name.strip(), _DECODER.raw_decode(arguments)[0])]


def write_qwen25(calls: Sequence[Call]) -> str:
    """A block of lines for each call."""
    return "\n".join(f"{_BLOCK}{_object(call, 'arguments')}{_BLOCK_END}" for call in calls)


def write_llama3(calls: Sequence[Call]) -> str:
    """Objects with `;` between them; the families' templates hold one call in a turn."""
    return ";".join(_object(call, "parameters") for call in calls)


def write_mistral(calls: Sequence[Call]) -> str:
    """A list of objects."""
    return f"{_MISTRAL_LIST}{', '.join(_object(call, 'arguments') for call in calls)}]"


def calls_in(decoded: Any) -> Iterator[Found]:
    """The calls among decoded values.

    Raises: `ValueError` for a value that is not an object: the engine then reports no call at all.
    """
    for value in decoded if isinstance(decoded, list) else [decoded]:
        if not isinstance(value, dict) or isinstance(value.get("name"), list | dict):
            raise ValueError("no call")
        if isinstance(value.get("name"), str):
            yield value["name"], value.get("parameters") or value.get("arguments", {})


def _object(call: Call, arguments: str) -> str:
    return as_json({"name": call[0], arguments: dict(call[1])})
