"""Base models that are odd or broken: each its sentence and status, and handed over if it loads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from miner.config.statuses import TrainerStatus
from miner.publishing.base_files import without_foreign_files
from miner.publishing.publisher import Publisher
from tests.builders import build_qwen3, save_base
from tests.training.commands import places
from tests.training.in_process import TINY, Work


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_base(tmp_path / "base", build_qwen3(max_position_embeddings=4096).half())


def broken_tokenizer(base: Path) -> None:
    (base / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Unheard"}}')


def raising_template(base: Path) -> None:
    (base / "chat_template.jinja").write_text("{{ raise_exception('no chat today') }}")


def unknown_architecture(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "unheard", "architectures": ["UnheardForCausalLM"]}
    (base / "config.json").write_text(json.dumps(config))


def infinite_weights(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] = torch.inf
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})


def cut_off(base: Path) -> None:
    os.truncate(base / "model.safetensors", 1000)


def leftover_adapter(base: Path) -> None:
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(build_qwen3(), config).save_pretrained(base)


def short_context(base: Path) -> None:
    build_qwen3(max_position_embeddings=256).half().save_pretrained(base)


@pytest.mark.parametrize(
    ("damage", "status", "handed_over", "words"),
    [
        (broken_tokenizer, TrainerStatus.DISK, False, ["the tokenizer does not load"]),
        (raising_template, TrainerStatus.REFUSED, True, ["no chat today", "cannot be used"]),
        (unknown_architecture, TrainerStatus.DISK, False, ["unheard"]),
        (cut_off, TrainerStatus.DISK, False, ["/base/model.safetensors is truncated"]),
        (leftover_adapter, TrainerStatus.REFUSED, False, ["model.path", "adapter_config.json"]),
        (infinite_weights, TrainerStatus.REFUSED, True, ["model.norm.weight", "NaN or infinite"]),
        (
            short_context,
            TrainerStatus.REFUSED,
            True,
            ["context of 256 tokens", "shortest"],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_base_has_its_sentence_and_is_published_if_it_loads(
    train: Callable[..., tuple[int, pytest.CaptureResult[str]]],
    tmp_path: Path,
    base: Path,
    damage: Callable[[Path], None],
    status: TrainerStatus,
    handed_over: bool,
    words: list[str],
) -> None:
    damage(base)
    code, said = train(*places(tmp_path, base), *TINY)
    assert code == status, said.err
    (sentence,) = [line for line in said.err.splitlines() if line.startswith("error:")]
    for word in words:
        assert word in sentence
    assert "Traceback" not in said.err
    current = Publisher(tmp_path / "out" / "task" / "repo", in_process=True).current()
    assert (current is not None) == handed_over


def test_the_orchestrators_links_leave_out_what_would_be_added_to_the_weights(work: Work) -> None:
    """What is played, trained and published are the whole weights, none of them frozen."""
    expected = load_file(work.base / "model.safetensors")
    leftover_adapter(work.base)
    links = without_foreign_files(work.base, work.folder / "links")
    work.train(f"model.path={links}", "optimizer.max_steps=1")
    (trainer,) = work.trainers
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert trained == {*expected}
    assert {*load_file(work.published / "model.safetensors")} == {*expected}
    assert not [*work.published.glob("adapter_*")]
