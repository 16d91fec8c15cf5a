"""A request as the text that a served model reads: its own chat template, with the tools.

The serving engine passes each tool on in a shape of its own, and templates print what they get, so
the shape is part of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from miner.duel.tools import Schema
from miner.duel.turn import Request


def shaped(tools: Sequence[Schema]) -> list[Any]:
    """`tools` of a request as SGLang hands them to a template: keys in its order, with `strict`."""
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


def render(tokenizer: PreTrainedTokenizerBase, request: Request, **template_arguments: Any) -> str:
    """The prompt of a request, up to where the model's reply begins."""
    chat: Any = request.messages
    text = tokenizer.apply_chat_template(
        chat,
        tools=shaped(request.tools),
        add_generation_prompt=True,
        tokenize=False,
        **template_arguments,
    )
    return str(text)
