"""Loads the model of a folder with all that playing it needs; the one place where this is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from miner.config.errors import ConfigurationError
from miner.rollout.renderer import ChatRenderer, TokenizerError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model, its tokenizer, and the chat template that its prompts are rendered by."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer


def load_model_folder(folder: Path, dtype: torch.dtype, device: str | None = None) -> LoadedModel:
    """The model in `folder`, on `device` (None: the CPU).

    Raises: `ConfigurationError` when the folder holds no model that can be loaded and talked to.
    """
    tokenizer, renderer = load_chat(folder)
    from transformers import AutoModelForCausalLM  # imports torch: seconds

    with _explained(folder):
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, device_map=device, local_files_only=True
        )
    return LoadedModel(model, tokenizer, renderer)


def load_chat(folder: Path) -> tuple[PreTrainedTokenizerBase, ChatRenderer]:
    """Tokenizer and chat template of the model in `folder`. Raises: `ConfigurationError`."""
    check_model_folder(folder)
    from transformers import AutoTokenizer

    with _explained(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return tokenizer, ChatRenderer(tokenizer)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TokenizerError) as error:
        raise ConfigurationError(f"the model in {folder} cannot be used: {error}") from error


def check_model_folder(folder: Path, *, named: str = "") -> None:
    """Look whether `folder` may hold a whole model, without loading it.

    Args:
        named: what a person calls the folder, such as its setting; stands before it in errors.

    Raises: `ConfigurationError`.
    """
    if (folder / "config.json").is_file():
        return
    if (folder / "adapter_config.json").is_file():
        raise ConfigurationError(
            f"{named}{folder} holds a LoRA adapter without its base model: merge it first (the "
            "published folder of a training run is merged)"
        )
    raise ConfigurationError(
        f"{named}{folder} holds no model (no config.json): name a folder that from_pretrained loads"
    )
