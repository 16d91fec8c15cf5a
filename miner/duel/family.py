"""Choice of the tool-call parser for a model folder, in the tournament's order.

Invariants:
* an exact id decides, then a type and template that are served with the validator's template, then
  the first fitting part of the id, else config.json's type;
* a job's model has a hash for a name, so the family is read from its template instead of its id.
"""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from miner.config.contract import BASES_WITHOUT_TEMPLATE, PARSER_ORDER
from miner.config.errors import ConfigurationError
from miner.duel.calls import FORMS
from miner.rollout.model_folder import load_chat, model_type

BASELINE_FAMILY = "qwen25"
"""Of the calls that baselines write."""

TYPES_WITHOUT_TEMPLATE = ("gemma4", "mistral3", "ministral3")
"""Beginnings of the types of `BASES_WITHOUT_TEMPLATE`; the last once it is a text model."""


def model_family(
    model: Path | None, parser: str | None
) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer of a channel's model and the parser of its calls, if named `parser`.

    A baseline (None) has no tokenizer. Raises: `ConfigurationError` as `folder_family`.
    """
    if model is None:
        return None, BASELINE_FAMILY
    tokenizer = load_chat(model).tokenizer
    return tokenizer, parser or folder_family(model, tokenizer)


def folder_family(folder: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the parser that the model in `folder` will be served with.

    A Gemma 4 or Mistral 3 without a template, or with one that asks for Hermes' calls, is a base
    that is served with the validator's template, and read as Qwen's, under any name: the parts of a
    name would fit its instructed sibling too. Where the name is a hash, a Llama whose template asks
    for Hermes' calls is a Hermes.

    Raises: `ConfigurationError` for a model of no known family: the tournament would serve it
        without a parser, and it would forfeit every game.
    """
    name, kind = folder.name.lower().replace("--", "/"), model_type(folder)
    if name in BASES_WITHOUT_TEMPLATE:
        return BASES_WITHOUT_TEMPLATE[name]
    shown = _form_shown(tokenizer)
    if kind.startswith(TYPES_WITHOUT_TEMPLATE) and shown in (None, "hermes"):
        return "qwen25"
    by_name = _first_fitting(name)
    if by_name is not None:
        return by_name
    by_type = _first_fitting(kind.lower())
    if shown is not None and by_type in (None, "llama3"):
        return shown
    if by_type is None:
        raise ConfigurationError(
            f"no tool-call parser belongs to {folder.name!r} or {kind!r}: name one of "
            f"{', '.join(FORMS)} as environment.tool_parser"
        )
    return by_type


def _first_fitting(name: str) -> str | None:
    return next((parser for part, parser in PARSER_ORDER if part in name), None)


def _form_shown(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The form of calls that the chat template asks for, if it shows one."""
    template = str(tokenizer.chat_template or "")
    forms = ((name, form.shown) for name, form in FORMS.items())
    return next((name for name, text in forms if text and text in template), None)
