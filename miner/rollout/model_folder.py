"""Loads the model of a folder with all that playing it needs; the one place where this is done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from miner.config.contract import SERVED_BY_TRANSFORMERS
from miner.config.errors import ConfigurationError
from miner.model_class import TOKENIZER_FILES, model_class
from miner.rollout.chat_template import ChatTemplateError, fixed_template
from miner.rollout.renderer import ChatRenderer, TokenizerError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


WRONG_REGEX = ("mistral3", "ministral3")
"""Models whose tokenizer may cut words otherwise than they were trained with; transformers has the
right pattern and takes it where it is asked to. Servers ask, so the graded prompts have it."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LoadedChat:
    """A tokenizer that pads and ends, with a template that holds a game's conversation.

    Attributes:
        changes: fixes of the folder's template, a sentence each; the tokenizer
            carries the fixed template, which belongs into every folder that is published.
    """

    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer
    changes: tuple[str, ...]

    @property
    def fixed_template(self) -> str | None:
        """The template to publish in place of the folder's own; None if that one is kept."""
        return str(self.tokenizer.chat_template) if self.changes else None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model and the chat that belongs to it."""

    model: PreTrainedModel
    chat: LoadedChat


def load_model_folder(folder: Path, dtype: torch.dtype, device: str | None = None) -> LoadedModel:
    """The model in `folder`, on `device` (None: the CPU).

    Raises: `ConfigurationError` when the folder holds no model that can be loaded and talked to.
    """
    from miner.rollout.mamba import prepare_mamba  # imports torch: seconds

    chat = load_chat(folder)
    with _explained(folder):
        model = model_class(folder).from_pretrained(
            folder, dtype=dtype, device_map=device, local_files_only=True
        )
    prepare_mamba(model)
    _keep_special_tokens_alone(model)
    return LoadedModel(model, chat)


def _keep_special_tokens_alone(model: PreTrainedModel) -> None:
    """Forget how the base wants to be sampled, which nothing here reads: `save_pretrained` refuses
    to save a temperature without `do_sample`, as some bases have it. Their own file is published.
    """
    from transformers import GenerationConfig

    base = model.generation_config
    if base is not None:
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        model.generation_config = GenerationConfig(**{name: getattr(base, name) for name in names})


def load_chat(folder: Path) -> LoadedChat:
    """Tokenizer and chat template of the model in `folder`, fixed where games need it.

    Raises: `ConfigurationError` if they cannot be used all the same.
    """
    check_model_folder(folder)
    from transformers import AutoTokenizer

    with _explained(folder):
        fixed = {"fix_mistral_regex": True} if model_type(folder) in WRONG_REGEX else {}
        tokenizer = AutoTokenizer.from_pretrained(folder, **TOKENIZER_FILES, **fixed)
        template = fixed_template(tokenizer, model_type(folder))
        if template.changes:
            tokenizer.chat_template = template.text
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = _padding(tokenizer)
        plain = model_type(folder) in SERVED_BY_TRANSFORMERS
        ends = () if plain else _reply_ends(folder)
        renderer = ChatRenderer(tokenizer, ends, plain_tools=plain)
        return LoadedChat(tokenizer, renderer, template.changes)


def _reply_ends(folder: Path) -> set[int]:
    """Ids at which engines end a reply besides EOS, which ends texts alone in some tokenizers."""
    file = folder / "generation_config.json"
    if not file.is_file():
        file = folder / "config.json"
    given = _json_object(file).get("eos_token_id")
    return {given} if isinstance(given, int) else set(given or ())


def model_type(folder: Path) -> str:
    """The type that config.json names; empty for none."""
    return str(_json_object(folder / "config.json").get("model_type") or "")


def _json_object(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} holds no object")
    return found


def _padding(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A token that no text holds, else the end token: padding is masked wherever it stands."""
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    for word in ("pad", "reserved"):
        for token in special:
            if word in token.lower():
                return token
    return tokenizer.eos_token


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TokenizerError, ChatTemplateError, SafetensorError) as error:
        again = "; download it again" if isinstance(error, SafetensorError) else ""
        raise ConfigurationError(f"the model in {folder} cannot be used: {error}{again}") from error


def check_model_folder(folder: Path, *, named: str = "") -> None:
    """Look whether `folder` may hold a whole model, without loading it.

    Args:
        named: the user's name of the folder, such as its setting; precedes it in errors.

    Raises: `ConfigurationError`.
    """
    adapter = (folder / "adapter_config.json").is_file()
    if (folder / "config.json").is_file():
        if adapter:
            raise ConfigurationError(
                f"{named}{folder} holds adapter_config.json beside a whole model, to which "
                "transformers would add the adapter: merge it, or move the adapter's files away"
            )
        return
    if adapter:
        raise ConfigurationError(
            f"{named}{folder} holds a LoRA adapter without its base model: merge it first (the "
            "published folder of a training run is merged)"
        )
    if not folder.exists() and _HUB_NAME.fullmatch(str(folder)):
        raise ConfigurationError(
            f"{named}{folder} is not a folder; if it is a model's name on the Hugging Face hub, "
            f"download it first: `hf download {folder} --local-dir {folder.name}`, and name the "
            f"folder {folder.name}"
        )
    raise ConfigurationError(
        f"{named}{folder} holds no model (no config.json): name a folder that from_pretrained loads"
    )
