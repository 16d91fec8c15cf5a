"""Forms with special marks around names and values: qwen3_coder, gemma4."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from miner.duel.calls.found import Call, Found, Offered, as_json, between

_TOOL, _TOOL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_GEMMA, _GEMMA_END = "<|tool_call>", "<tool_call|>"
_QUOTE = '<|"|>'
_SPACE = " ,\n\t"


def parse_qwen3_coder(text: str, offered: Offered) -> list[Found]:
    """Functions in blocks of `<tool_call>`, or anywhere if no block ends; schemas cast values."""
    if _TOOL not in text:
        return []
    calls: list[Found] = []
    for block in list(between(text, _TOOL, _TOOL_END)) or [text]:
        for body in between(block, _FUNCTION, _FUNCTION_END, last=True):
            name, closed, parameters = body.partition(">")
            if closed:
                calls.append((name, _parameters(parameters, offered.get(name, {}))))
    return calls


def parse_gemma4(text: str, offered: Offered) -> list[Found]:
    """`call:name{key:value,...}` in each block; texts are between marks, other values bare."""
    calls: list[Found] = []
    for block in between(text, _GEMMA, _GEMMA_END):
        name, opened, arguments = block.removeprefix("call:").partition("{")
        if block.startswith("call:") and opened:
            calls.append((name, _members(arguments, 0)[0]))
    return calls


def write_qwen3_coder(calls: Sequence[Call]) -> str:
    """A block of lines for each call, a tag for each parameter."""
    return "\n".join(
        f"{_TOOL}\n{_FUNCTION}{name}>\n"
        + "".join(
            f"{_PARAMETER}{key}>\n{value if isinstance(value, str) else as_json(value)}\n"
            f"{_PARAMETER_END}\n"
            for key, value in arguments.items()
        )
        + f"{_FUNCTION_END}\n{_TOOL_END}"
        for name, arguments in calls
    )


def write_gemma4(calls: Sequence[Call]) -> str:
    """A block for each call, keys in the order of the alphabet."""
    return "".join(f"{_GEMMA}call:{name}{_written(dict(args))}{_GEMMA_END}" for name, args in calls)


def _parameters(text: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for piece in text.split(_PARAMETER)[1:]:
        piece, closed, _ = piece.partition(_PARAMETER_END)
        name, named, value = piece.partition(">")
        if named:
            value = value if closed else value.removesuffix("\n")
            value = value.removeprefix("\n").removesuffix("\n")
            found[name] = _cast(value, schemas.get(name, {}).get("type", "string"))
    return found


def _cast(text: str, kind: str) -> Any:
    if text.lower() == "null":
        return None
    read: Callable[[str], Any] = {"string": str, "integer": int}.get(kind, json.loads)
    try:
        return read(text)
    except ValueError:
        return text


def _members(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The members of an object from after its brace on, and where it ends."""
    found: dict[str, Any] = {}
    while (at := _skip(text, at)) < len(text) and text[at] != "}":
        colon = text.find(":", at)
        if colon == -1:
            return found, len(text)
        found[text[at:colon].strip()], at = _value(text, _skip(text, colon + 1, " \n\t"), ",}]")
    return found, at + 1


def _items(text: str, at: int) -> tuple[list[Any], int]:
    """The items of a list from after its bracket on, and where it ends."""
    found: list[Any] = []
    while (at := _skip(text, at)) < len(text) and text[at] != "]":
        item, at = _value(text, at, ",]")
        found.append(item)
    return found, at + 1


def _value(text: str, at: int, ends: str) -> tuple[Any, int]:
    """A value and where it ends; a text that does not end takes all that is left.

    `ends` are the marks that end a bare value.
    """
    if text.startswith(_QUOTE, at):
        begin = at + len(_QUOTE)
        end = text.find(_QUOTE, begin)
        return (text[begin:], len(text)) if end == -1 else (text[begin:end], end + len(_QUOTE))
    if text.startswith("{", at):
        return _members(text, at + 1)
    if text.startswith("[", at):
        return _items(text, at + 1)
    end = min((found for mark in ends if (found := text.find(mark, at)) != -1), default=len(text))
    return _bare(text[at:end].strip()), end


def _bare(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _skip(text: str, at: int, marks: str = _SPACE) -> int:
    while at < len(text) and text[at] in marks:
        at += 1
    return at


def _written(value: Any) -> str:
    match value:
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case dict():
            keys = sorted(value, key=str.lower)
            return f"{{{','.join(f'{key}:{_written(value[key])}' for key in keys)}}}"
        case list():
            return f"[{','.join(map(_written, value))}]"
    return as_json(value)
