"""The class of transformers for a model folder, and the weights that take part in text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


TOKENIZER_FILES: dict[str, Any] = {"local_files_only": True, "mistral_format": False}
"""For `AutoTokenizer`: no hub, and the files that all families have. Beside Mistral's own, and with
its package installed, as vLLM has it, transformers would make a tokenizer without a template."""


def model_class(folder: Path) -> Any:
    """The auto class for `folder`.

    A checkpoint with an image part is loaded whole, by the class with images, so that what is
    published has every tensor of the base under its own name. transformers' classes for text would
    drop the part (Qwen3.5) or do not exist for such a checkpoint (Ministral 3).

    Raises: `OSError` or `ValueError` for a folder without a configuration that transformers knows.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as WITH_IMAGES,
    )

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    whole = config.get_text_config() is not config and config.model_type in WITH_IMAGES
    return AutoModelForImageTextToText if whole else AutoModelForCausalLM


def outside_text(model: Any) -> dict[str, torch.nn.Module]:
    """Whole modules by name that no text passes through: encoders of images, what projects them.

    Args:
        model: a transformers model; one for text alone has none of these.
    """
    inside = set(model.get_decoder().modules()) | set(model.get_output_embeddings().modules())
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        within = any(name.startswith(f"{outer}.") for outer in found)
        if not within and inside.isdisjoint(module.modules()):
            found[name] = module
    return found


def freeze_outside_text(model: Any) -> None:
    """Leave the weights of `outside_text` untrained: nothing gives them a gradient, which data
    parallel training waits for."""
    for module in outside_text(model).values():
        module.requires_grad_(False)
