"""Facts read from the base model's folder."""

import json
import os
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    MixtralConfig,
    NemotronHConfig,
    Qwen3MoeConfig,
)

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.model_facts import DEFAULT_CONTEXT, DELTA_COPIES, read_model_facts, shape_of
from entrypoint.pretended import SIZES, pretend_model

QWEN_3B = {
    "num_hidden_layers": 36,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
Writer = Callable[..., Path]


def test_facts_of_a_sound_folder(tmp_path: Path, model_writer: Writer) -> None:
    facts = read_model_facts(model_writer(tmp_path / "m", values=1000))
    assert (facts.architecture, facts.dtype, facts.counted) == ("Qwen2ForCausalLM", "BF16", True)
    assert facts.shape.parameters == 1000
    assert facts.shape.context == 2048
    assert facts.shape.head_dim == 16
    assert facts.gaps == ()


def test_estimate_of_the_parameters_is_close() -> None:
    assert shape_of(QWEN_3B).parameters == pytest.approx(3_085_938_688, rel=0.01)


@pytest.mark.parametrize(
    ("listed", "trees"),
    [
        ({}, True),
        ({"layer_types": ["sliding_attention", "full_attention"]}, True),
        ({"layer_types": ["conv", "full_attention"]}, False),
        ({"layers_block_type": ["mamba", "attention"]}, False),
        ({"mamba_n_heads": 8, "mamba_d_state": 64}, False),
    ],
)
def test_which_models_take_trees(listed: dict[str, object], trees: bool) -> None:
    assert shape_of(QWEN_3B | listed).trees is trees


@pytest.mark.parametrize(("heads", "sizes"), [(16, 16 * 128), (None, 2 * 2048)])
def test_a_recurrent_layer_takes_memory_by_its_heads_where_they_are_named(
    heads: int | None, sizes: int
) -> None:
    config = QWEN_3B | {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": heads,
        "linear_value_head_dim": 128,
    }
    assert shape_of(config).mixer_bytes == DELTA_COPIES * 4 * sizes


SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "num_experts_per_tok": 3,
}
WIDE: dict[str, Any] = SMALL | {"moe_intermediate_size": 32, "n_routed_experts": 16}
MIXTURES = {
    "qwen": Qwen3MoeConfig(**SMALL, moe_intermediate_size=32, num_experts=16),
    "mixtral": MixtralConfig(**SMALL, intermediate_size=128, num_local_experts=8),
    "deepseek": DeepseekV3Config(**WIDE, intermediate_size=128, first_k_dense_replace=1),
    "nemotron": NemotronHConfig(**WIDE, layers_block_type=["moe", "linear_attention"] * 2),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_that_a_token_does_not_pass_are_idle(name: str) -> None:
    """Counted in transformers' models."""
    config = MIXTURES[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    written = config.to_dict()
    experts = written.get("n_routed_experts") or written["num_local_experts"]
    idle = shape_of(written, sum(sizes.values())).idle
    assert idle == of_experts * (experts - 3) // experts > 0


def test_layers_with_experts_are_counted_in_either_spelling() -> None:
    """Nvidia's own files have a letter for each layer."""
    listed = MIXTURES["nemotron"].to_dict()
    letters = listed | {"layers_block_type": None, "hybrid_override_pattern": "EMEM"}
    shapes = [shape_of(each | {"num_hidden_layers": 4}, 10**6) for each in (listed, letters)]
    assert shapes[0].idle == shapes[1].idle == 13 * 2 * 2 * 64 * 32


@pytest.mark.parametrize(
    "unknown",
    [{"num_experts_per_tok": None}, {"num_local_experts": None}, {"num_hidden_layers": 8}],
    ids=["chosen", "experts", "in every other layer"],
)
def test_all_experts_count_where_their_sizes_are_not_known(unknown: dict[str, Any]) -> None:
    known = MIXTURES["qwen"].to_dict()
    assert shape_of(known, 500_000).idle > 0
    assert shape_of(known | unknown, 500_000).idle == 0


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gpt_neo", (24, 2048, 16, 2048)),
        ("mpt", (24, 2048, 16, 2048)),
        ("dbrx", (24, 2048, 16, 2048)),
        ("mamba2", (64, 4096, 128, DEFAULT_CONTEXT)),
        ("mamba", (32, 768, 1, DEFAULT_CONTEXT)),
    ],
)
def test_sizes_are_read_as_each_family_spells_them(
    family: str, sizes: tuple[int, int, int, int]
) -> None:
    shape = shape_of(AutoConfig.for_model(family).to_dict())
    assert (shape.layers, shape.hidden, shape.heads, shape.context) == sizes


def test_text_part_of_a_multimodal_config_counts() -> None:
    assert shape_of({"hidden_size": 1, "text_config": QWEN_3B}).hidden == 2048


def test_layers_of_double_width_are_planned_for() -> None:
    """As half of Gemma 4 E2B's are, while `intermediate_size` is that of the others."""
    wide = shape_of(QWEN_3B | {"use_double_wide_mlp": True})
    assert wide.intermediate == 2 * QWEN_3B["intermediate_size"]


def test_missing_folder_reports_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "acme--other").mkdir()
    with pytest.raises(Failure, match=r"acme--tiny: .* holds acme--other") as caught:
        read_model_facts(tmp_path / "acme--tiny")
    assert caught.value.status == ExitStatus.MODEL


def test_missing_cache_reports_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="does not exist either"):
        read_model_facts(tmp_path / "models" / "m")


@pytest.mark.parametrize(
    ("owner", "name", "closed"), [(Path, "stat", "models/acme--tiny"), (os, "listdir", "models")]
)
def test_a_folder_that_must_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, closed: str
) -> None:
    """As where a folder of another user is not to be entered, or listed; root may read all."""
    (tmp_path / "models").mkdir()
    real = getattr(owner, name)

    def refuse(path: object, **options: Any) -> object:
        if path == tmp_path / closed:
            raise PermissionError(EACCES, os.strerror(EACCES), str(path))
        return real(path, **options)

    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(Failure, match=f"cannot be read .Permission denied: .*{closed}") as caught:
        read_model_facts(tmp_path / "models/acme--tiny")
    assert caught.value.status == ExitStatus.MODEL


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def remove_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (break_config, "config.json is not valid JSON"),
        (remove_layers, "config.json has no number num_hidden_layers"),
        (cut_weights, "truncated"),
        (remove_weights, "holds no model.safetensors"),
        (remove_tokenizer, "no tokenizer"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, model_writer: Writer, damage: Callable[[Path], None], words: str
) -> None:
    folder = model_writer(tmp_path / "m")
    damage(folder)
    with pytest.raises(Failure, match=words) as caught:
        read_model_facts(folder)
    assert caught.value.status == ExitStatus.MODEL


def test_gaps_of_a_base_model_are_no_failure(tmp_path: Path, model_writer: Writer) -> None:
    folder = model_writer(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("{}")
    assert any("chat template" in gap for gap in read_model_facts(folder).gaps)


def test_a_model_that_is_not_there_is_planned_for_by_size_or_config(tmp_path: Path) -> None:
    named = pretend_model("3b")
    (tmp_path / "config.json").write_text(
        json.dumps({**QWEN_3B, "architectures": ["Qwen2ForCausalLM"]})
    )
    for given in (tmp_path, tmp_path / "config.json"):
        read = pretend_model(str(given))
        assert read.architecture == named.architecture == "Qwen2ForCausalLM"
        assert read.shape.parameters == pytest.approx(named.shape.parameters, rel=0.01)
        assert read.weight_bytes == 2 * read.shape.parameters
        assert not read.counted
    llama = pretend_model("8B")
    assert llama.architecture == "LlamaForCausalLM"
    assert "Llama-3.1-8B" in llama.gaps[0]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (
            None,
            ExitStatus.ARGUMENTS,
            f"expected a model's config.json or one of {', '.join(SIZES)}",
        ),
        ("{", ExitStatus.MODEL, "not valid JSON"),
        ('{"hidden_size": 1}', ExitStatus.MODEL, "has no number num_hidden_layers"),
    ],
)
def test_what_no_model_can_be_planned_from_is_named(
    tmp_path: Path, content: str | None, status: ExitStatus, words: str
) -> None:
    file = tmp_path / "70B"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Failure, match=words) as caught:
        pretend_model(str(file))
    assert caught.value.status == status
