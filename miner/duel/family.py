"""Which tool-call parser a model will be served with, by its name and what its folder says.

A job's model has a hash for a name, so its configuration and its chat template have to tell.
"""

from __future__ import annotations

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from miner.config.errors import ConfigurationError
from miner.duel.calls import PARSERS

_FAMILIES = (
    ("hermes", "hermes"),
    ("qwen", "qwen25"),
    ("llama", "llama3"),
    ("mixtral", "mistral"),
    ("mistral", "mistral"),
)
"""Part of a name and the parser it stands for; the first that fits counts."""

_MARKS = (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"))
"""What the templates of these families tell a model to write; Qwen's too, whose type says so."""


def folder_family(folder: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """The parser for the model in `folder`: by its name, else its type and its template.

    A Llama whose template asks for Hermes' calls is a Hermes.
    Raises: `ConfigurationError` if nothing tells: the tournament would serve it without a parser,
        and it would forfeit every game.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = (folder.name, str(config.get("model_type") or ""))
    fitting = (family for name in names for part, family in _FAMILIES if part in name.lower())
    named = next(fitting, None)
    template = str(tokenizer.chat_template)
    shown = next((family for text, family in _MARKS if text in template), None)
    if shown is not None and named in (None, "llama3"):
        return shown
    if named is None:
        raise ConfigurationError(
            f"no tool-call parser belongs to {' or '.join(map(repr, names))}: name one of "
            f"{', '.join(PARSERS)}"
        )
    return named
