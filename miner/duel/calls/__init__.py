"""Tool calls as text: one table of forms, each read as the serving engine reads it, and written.

Invariants:
* the tournament serves with SGLang, so each parser takes and leaves what SGLang's does (olmo's is
  the tournament's own); vLLM's agree on well-formed calls and differ at the edges (a test holds the
  two against each other). Later releases repair some broken calls, these parsers never do: a model
  must not learn calls that only some releases read;
* a call of a tool that was not offered is left out, and no text raises;
* what `write_calls` returns is read back by the same parser as the same calls.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from miner.duel.calls import json_forms, literal_forms, tagged_forms
from miner.duel.calls.found import Call, Found, Offered
from miner.duel.tools import ToolCall

_UNREADABLE = (ValueError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError)
"""Raised by parsers for text that the engine takes for no call at all."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The form in which one family of models writes calls.

    Attributes:
        shown: text by which a chat template of the family is recognised; empty: by no text.
        begin: text that begins a call; what is before it is a reply's content.
        parse: text and offered tools -> calls, also of unknown tools. Raises: `_UNREADABLE`.
        write: calls -> text, as the family's chat templates render them.
    """

    shown: str
    begin: str
    parse: Callable[[str, Offered], list[Found]]
    write: Callable[[Sequence[Call]], str]


FORMS: dict[str, CallForm] = {
    "qwen3_coder": CallForm(
        "<function=", "<tool_call>", tagged_forms.parse_qwen3_coder, tagged_forms.write_qwen3_coder
    ),
    "gemma4": CallForm(
        "<|tool_call>", "<|tool_call>", tagged_forms.parse_gemma4, tagged_forms.write_gemma4
    ),
    "olmo": CallForm(
        "<function_calls>", "<function_calls>", literal_forms.parse_olmo, literal_forms.write_olmo
    ),
    "lfm2": CallForm(
        "<|tool_call_start|>",
        "<|tool_call_start|>",
        literal_forms.parse_lfm2,
        literal_forms.write_lfm2,
    ),
    "mistral": CallForm(
        "[TOOL_CALLS]", "[TOOL_CALLS", json_forms.parse_mistral, json_forms.write_mistral
    ),
    "hermes": CallForm(
        "<tool_call>", "<tool_call>", json_forms.parse_hermes, json_forms.write_qwen25
    ),
    "qwen25": CallForm("", "<tool_call>", json_forms.parse_qwen25, json_forms.write_qwen25),
    "llama3": CallForm("", "<|python_tag|>", json_forms.parse_llama3, json_forms.write_llama3),
}
"""By the serving engine's names. A template has the form of the first whose `shown` is in it."""


def parse_calls(family: str, text: str, offered: Offered) -> list[ToolCall]:
    """Return the calls of the tools `offered` in a reply's text; none where the parser fails."""
    try:
        return [
            ToolCall(name, json.dumps(arguments, ensure_ascii=False))
            for name, arguments in FORMS[family].parse(text, offered)
            if name in offered
        ]
    except _UNREADABLE:
        return []


def content_of(family: str, text: str, calls: Sequence[ToolCall]) -> str:
    """Return a reply's text as an engine returns it beside the `calls` that it read from it.

    With calls, the text before the first mark; what follows the calls is dropped.
    """
    before, mark, _ = text.partition(FORMS[family].begin)
    return text if not calls else before if mark else ""


def write_calls(family: str, calls: Sequence[ToolCall], content: str = "") -> str:
    """Return the text of a reply of `content` and `calls`, in order.

    The calls' arguments are JSON objects. Where a family's calls are read only at the beginning of
    a reply, its mark of a call comes between.

    Raises: `ValueError` if the family's parser does not read the same calls back: the form cannot
        hold such arguments (an end tag inside a text, for example).
    """
    decoded = [(call.name, json.loads(call.arguments)) for call in calls]
    if not decoded:
        return content
    form = FORMS[family]
    written = form.write(decoded)
    texts = [f"{content}\n{mark}{written}" for mark in ("", form.begin)] if content else [written]
    schemas = {
        name: {
            key: {"type": _SCHEMA_TYPES.get(type(value), "object")} for key, value in args.items()
        }
        for name, args in decoded
    }
    for text in texts:
        read = parse_calls(family, text, schemas)
        if [(call.name, json.loads(call.arguments)) for call in read] == decoded:
            return text
    raise ValueError(f"no calls of the form {family} have these arguments: {decoded!r}")


_SCHEMA_TYPES = {str: "string", int: "integer", bool: "boolean", float: "number"}
