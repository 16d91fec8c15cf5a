"""Which tool-call parser a model will be served with, by its name and what its folder says.

A job's model has a hash for a name, so its configuration and its chat template have to tell.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from miner.config.errors import ConfigurationError
from miner.duel.calls import family_of

_MARKS = (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"))
"""What the templates of these families tell a model to write; Qwen's too, whose type says so."""


def folder_family(folder: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """The parser for the model in `folder`: by its name, else its type and its template.

    A Llama whose template asks for Hermes' calls is a Hermes.
    Raises: `ConfigurationError` if nothing tells: the tournament would serve it without a parser.
    """
    template = _text(tokenizer.chat_template)
    shown = next((family for text, family in _MARKS if text in template), None)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        named = family_of(folder.name, str(config.get("model_type") or ""))
    except ConfigurationError:
        if shown is None:
            raise
        return shown
    return shown if shown is not None and named == "llama3" else named


def _text(template: Any) -> str:
    return " ".join(template.values()) if isinstance(template, dict) else str(template or "")
