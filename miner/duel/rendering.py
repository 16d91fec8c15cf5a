"""A request as the text that a served model reads: its own chat template, with the tools.

The serving engine passes each tool on in a shape of its own, and templates print what they get, so
the shape is part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from transformers import PreTrainedTokenizerBase

from miner.duel.tools import Schema
from miner.duel.turn import Request


class ToolShape(StrEnum):
    """How a template gets the tools."""

    ENGINE = "engine"
    """SGLang as it is now: type and function, keys in its order, with `strict`."""
    FUNCTION = "function"
    """SGLang before: the inner object alone, in the same order."""
    SENT = "sent"
    """As the request has them; so does vLLM."""


def shaped(tools: Sequence[Schema], shape: ToolShape = ToolShape.ENGINE) -> list[Any]:
    """`tools` of a request as a template gets them."""
    if shape is ToolShape.SENT:
        return list(tools)
    inner = [
        {
            "description": tool["function"]["description"],
            "name": tool["function"]["name"],
            "parameters": tool["function"]["parameters"],
            "strict": False,
        }
        for tool in tools
    ]
    if shape is ToolShape.FUNCTION:
        return inner
    return [{"type": "function", "function": function} for function in inner]


def render(
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    shape: ToolShape = ToolShape.ENGINE,
    **template_arguments: Any,
) -> str:
    """The prompt of a request, up to where the model's reply begins."""
    text = tokenizer.apply_chat_template(
        request.messages,
        tools=shaped(request.tools, shape),
        add_generation_prompt=True,
        tokenize=False,
        **template_arguments,
    )
    return str(text)
