"""Tiny models of a few kilobytes, with the files that an older transformers would have written."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from miner.publishing import fresh_process
from miner.publishing.__main__ import main

torch.set_num_threads(1)

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}
WORDS = ("<|pad|>", "<|end|>", "[UNK]", "user", "assistant", "0", "1", "2")


def build_model(folder: Path, seed: int) -> Path:
    """Write a Qwen3 of about 1,300 bfloat16 parameters with tokenizer and chat template."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}\n')
    (folder / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "unk_token": "[UNK]",
        "chat_template": "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model. Not to be changed: see `model` for a copy."""
    return build_model(tmp_path_factory.mktemp("models") / "base", seed=1)


@pytest.fixture(scope="session")
def trained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights. Not to be changed."""
    return build_model(tmp_path_factory.mktemp("models") / "trained", seed=2)


@pytest.fixture
def model(base_model: Path, tmp_path: Path) -> Path:
    """A copy of the base model to damage."""
    return Path(shutil.copytree(base_model, tmp_path / "model"))


Weights = dict[str, torch.Tensor]


@pytest.fixture
def change_weights() -> Callable[[Path, Callable[[Weights], object]], None]:
    """Rewrite a folder's weight file after a function has changed the tensors in it."""

    def change(folder: Path, edit: Callable[[Weights], object]) -> None:
        file = folder / "model.safetensors"
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        edit(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def edit_json(file: Path, **changes: object) -> None:
    """Set keys of a JSON file; None removes a key."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@pytest.fixture
def set_json() -> Callable[..., None]:
    """`edit_json` as a fixture."""
    return edit_json


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run what `fresh_process` starts here, so that a test need not wait for torch's import.

    Returns: the commands run so far.
    """
    commands: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command[3])
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = main(command[3:])
        return subprocess.CompletedProcess(command, status, output.getvalue(), "")

    monkeypatch.setattr(fresh_process.subprocess, "run", run)
    return commands


@pytest.fixture
def shard() -> Callable[[Path], None]:
    """Split a folder's weight file into two shards with an index."""

    def split(folder: Path) -> None:
        model = Qwen3ForCausalLM.from_pretrained(folder)
        size = (folder / "model.safetensors").stat().st_size
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=size // 2)

    return split
