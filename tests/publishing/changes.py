"""Changes to a model folder."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

Weights = dict[str, torch.Tensor]


def change_weights(folder: Path, edit: Callable[[Weights], object]) -> None:
    """Rewrite a folder's weight file after a function has changed the tensors in it."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def set_json(file: Path, **changes: object) -> None:
    """Set keys of a JSON file; None removes a key."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def shard(folder: Path) -> None:
    """Split a folder's weight file into two shards with an index."""
    model = Qwen3ForCausalLM.from_pretrained(folder)
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size=size // 2)
