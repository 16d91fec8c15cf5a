"""Tiny models of a few kilobytes, with the files that an older transformers would have written."""

import contextlib
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
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


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    folder = tmp_path / "destination"
    folder.mkdir()
    return folder


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
