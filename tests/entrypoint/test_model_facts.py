"""Facts read from the base model's folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.model_facts import DELTA_COPIES, read_model_facts, shape_of
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


def test_text_part_of_a_multimodal_config_counts() -> None:
    assert shape_of({"hidden_size": 1, "text_config": QWEN_3B}).hidden == 2048


def test_missing_folder_reports_what_is_there_instead(tmp_path: Path) -> None:
    (tmp_path / "acme--other").mkdir()
    with pytest.raises(Failure, match=r"acme--tiny: .* holds acme--other") as caught:
        read_model_facts(tmp_path / "acme--tiny")
    assert caught.value.status == ExitStatus.MODEL


def test_missing_cache_reports_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="does not exist either"):
        read_model_facts(tmp_path / "models" / "m")


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
