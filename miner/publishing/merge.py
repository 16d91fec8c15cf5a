"""From what training saves (a LoRA adapter or full weights) to a folder that the grader loads.

Invariants:
* the result is the base model's folder with other weights: same companion files, same dtype, so
  what held-out evaluation played in that dtype is what is handed over;
* the process that trains is not touched: the adapter is merged into a fresh copy of the base, in
  float32 and rounded once, where merging in place and back lets a bfloat16 base drift.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from miner.publishing.base_files import copy_companions, keep_only_weights
from miner.publishing.errors import PublishingError
from miner.publishing.structure import (
    INDEX_FILE,
    SINGLE_FILE,
    by_dtype,
    read_header,
    read_headers,
    read_json,
    weight_files,
)

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_trained_model(base: Path, checkpoint: Path, destination: Path) -> None:
    """Write the model that `checkpoint` is, a LoRA adapter or full weights, into `destination`.

    Args:
        base: folder of the base model that training started from.
        checkpoint: what `trainer.save_model` wrote.
        destination: an existing folder, as `Publisher.publish` hands it to `save`.

    Raises: `PublishingError` if checkpoint and base do not fit; `OSError` if the disk refuses.
    """
    if (checkpoint / ADAPTER_CONFIG).is_file():
        _save_weights(_merged(base, checkpoint).to(base_dtype(base)), destination)
    else:
        _write_cast(base, checkpoint, destination)
    copy_companions(base, destination)


def convert_base(base: Path, destination: Path) -> None:
    """Write a base model that has no safetensors as one that has them, in its own dtype."""
    _save_weights(_load(base, base_dtype(base)), destination)
    copy_companions(base, destination)


def base_dtype(base: Path) -> torch.dtype:
    """The dtype that most parameters of `base` have; bfloat16 where that is no ordinary float."""
    common = torch.bfloat16
    if not weight_files(base):
        config = read_json(base / "config.json")
        named = config.get("dtype") or config.get("torch_dtype")
        return next((kind for kind in _DTYPES.values() if str(kind) == f"torch.{named}"), common)
    return _DTYPES.get(by_dtype(read_headers(base)).most_common(1)[0][0], common)


def _merged(base: Path, adapter: Path) -> Any:
    """The base model in float32 with the adapter merged in."""
    model = PeftModel.from_pretrained(_load(base, torch.float32), adapter)
    saved = set(read_header(adapter / ADAPTER_WEIGHTS))
    expected = set(get_peft_model_state_dict(model))
    if saved != expected:  # peft only warns, and merges what it found: perhaps nothing
        raise PublishingError(
            f"the adapter in {adapter} does not fit the base model in {base}: {len(saved)} tensors"
            f" saved, {len(expected)} expected, for example {min(saved ^ expected)!r} in one only."
        )
    return model.merge_and_unload(safe_merge=True)


def _write_cast(base: Path, checkpoint: Path, destination: Path) -> None:
    """Copy full weights file by file, each tensor in the dtype that it has in the base."""
    read_headers(checkpoint)
    common = base_dtype(base)
    in_base = read_headers(base) if weight_files(base) else {}
    files = weight_files(checkpoint)
    for file in files:
        cast: dict[str, torch.Tensor] = {}
        with safe_open(str(file), framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                tensor = tensors.get_tensor(name)
                if tensor.is_floating_point():
                    own = in_base[name].dtype if name in in_base else ""
                    tensor = tensor.to(_DTYPES.get(own, common))
                cast[name] = tensor.contiguous()
        save_file(cast, str(destination / file.name), metadata={"format": "pt"})
    if files[0].name != SINGLE_FILE:
        shutil.copyfile(checkpoint / INDEX_FILE, destination / INDEX_FILE)


def _load(folder: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)


def _save_weights(model: Any, destination: Path) -> None:
    model.save_pretrained(destination)
    keep_only_weights(destination)
