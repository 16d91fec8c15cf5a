"""Every folder that the grader cannot use is named by the cheap check, and nothing else is."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import check_structure, read_header
from miner.publishing.verify import verify_model
from tests.publishing.changes import set_json, shard

WEIGHTS = "model.safetensors"


def cut_a_byte(model: Path) -> None:
    os.truncate(model / WEIGHTS, (model / WEIGHTS).stat().st_size - 1)


def add_checkpoint(model: Path) -> None:
    (model / "checkpoint-10").mkdir()
    shutil.copy(model / WEIGHTS, model / "checkpoint-10")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (cut_a_byte, "is truncated, damaged"),
    "adapter beside weights": (
        lambda model: (model / "adapter_config.json").write_text("{}"),
        "taken for an adapter",
    ),
    "pickled weights": (
        lambda model: (model / WEIGHTS).rename(model / "pytorch_model.bin"),
        "holds no model.safetensors .*pytorch_model.bin",
    ),
    "checkpoint inside": (add_checkpoint, "checkpoint-10 holds safetensors"),
    "stray shard": (
        lambda model: shutil.copy(model / WEIGHTS, model / "model-00001-of-00002.safetensors"),
        "not one of the model's weight files",
    ),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "holds no tokenizer"),
    "broken config": (
        lambda model: (model / "config.json").write_text('{"model_type": '),
        "config.json is not valid JSON",
    ),
    "a list": (lambda model: (model / "config.json").write_text("[]"), "holds a list"),
    "no model type": (lambda model: (model / "config.json").write_text("{}"), "model_type"),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_whether_base_or_trained(
    model: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    damage(model)
    for strict in (True, False):
        with pytest.raises(UnverifiedModelError, match=sentence):
            verify_model(model, load=False, strict=strict)


def test_a_base_may_hold_other_weights_beside_its_own(model: Path) -> None:
    shutil.copy(model / WEIGHTS, model / "consolidated.safetensors")
    check_structure(model, published=False)
    with pytest.raises(UnverifiedModelError, match="not one of the model's weight files"):
        check_structure(model)


def test_sound_model_passes(base_model: Path) -> None:
    report = verify_model(base_model, load=False)
    assert (report.parameters, report.dtypes) == (1336, {"BF16": 1336})
    assert report.weight_bytes == (base_model / "model.safetensors").stat().st_size
    assert not report.loaded
    assert report.warnings == ()


def test_harmless_subfolder_passes(model: Path) -> None:
    (model / "logs").mkdir()
    (model / "logs" / "train.txt").write_text("fine")
    assert verify_model(model, load=False).parameters > 0


@pytest.mark.parametrize(
    ("key", "gap"),
    [
        ("chat_template", "no chat template"),
        ("eos_token", "no end-of-sequence token"),
        ("pad_token", "no padding token"),
    ],
)
def test_incomplete_tokenizer_is_an_error_of_ours_and_a_warning_of_the_base(
    model: Path, key: str, gap: str
) -> None:
    set_json(model / "tokenizer_config.json", **{key: None})
    with pytest.raises(UnverifiedModelError, match=gap):
        verify_model(model, load=False)
    assert gap in verify_model(model, load=False, strict=False).warnings[0]


@pytest.mark.parametrize("template", ["chat_template.jinja", "chat_template.json"])
def test_template_and_tokens_in_files_of_their_own_count(template: str, model: Path) -> None:
    gone = {"chat_template": None, "eos_token": None, "pad_token": None}
    set_json(model / "tokenizer_config.json", **gone)
    (model / template).write_text('{"chat_template": "{{ messages }}"}')
    tokens = {"eos_token": {"content": "<|end|>"}, "pad_token": "<|pad|>"}
    (model / "special_tokens_map.json").write_text(json.dumps(tokens))
    assert verify_model(model, load=False).warnings == ()


class TestShards:
    """Models in several files."""

    @pytest.fixture
    def shards(self, model: Path) -> list[Path]:
        shard(model)
        files = sorted(model.glob("model-*.safetensors"))
        assert len(files) > 1
        return files

    def test_complete(self, model: Path, shards: list[Path]) -> None:
        assert verify_model(model, load=False).parameters == 1336

    def test_missing(self, model: Path, shards: list[Path]) -> None:
        shards[1].unlink()
        with pytest.raises(UnverifiedModelError, match="cannot be read: No such file") as caught:
            verify_model(model, load=False)
        assert str(caught.value).count(shards[1].name) == 1

    def test_swapped(self, model: Path, shards: list[Path]) -> None:
        first, second = shards[0].read_bytes(), shards[1].read_bytes()
        shards[0].write_bytes(second)
        shards[1].write_bytes(first)
        with pytest.raises(UnverifiedModelError, match="lacks the tensor"):
            verify_model(model, load=False)

    def test_index_leading_out_of_the_folder(self, model: Path, shards: list[Path]) -> None:
        weight_map = {"a": "../elsewhere.safetensors"}
        set_json(model / "model.safetensors.index.json", weight_map=weight_map)
        with pytest.raises(UnverifiedModelError, match="not a file beside it"):
            verify_model(model, load=False)

    @pytest.mark.parametrize("weight_map", [None, {}])
    def test_index_without_map(
        self, model: Path, shards: list[Path], weight_map: dict[str, str] | None
    ) -> None:
        set_json(model / "model.safetensors.index.json", weight_map=weight_map)
        with pytest.raises(UnverifiedModelError, match='no "weight_map" from tensors'):
            verify_model(model, load=False)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
        *("tekken.json", "qwen.tiktoken"),
    ],
)
def test_every_kind_of_vocabulary_is_a_tokenizer(model: Path, name: str) -> None:
    (model / "tokenizer.json").rename(model / name)
    assert verify_model(model, load=False).warnings == ()


@settings(max_examples=200)
@given(
    entry=st.fixed_dictionaries(
        {
            "dtype": st.one_of(st.sampled_from(["F32", "BF16", "F99"]), st.none(), st.integers()),
            "shape": st.one_of(st.lists(st.integers(0, 3)), st.none(), st.just(["2"])),
            "data_offsets": st.one_of(st.lists(st.integers(-8, 40)), st.none()),
        }
    ),
    extra=st.integers(0, 40),
)
def test_untrusted_header_is_accepted_only_if_it_fits_the_file(
    tmp_path_factory: pytest.TempPathFactory, entry: dict[str, object], extra: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "header.safetensors"
    header = json.dumps({"t": entry}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(extra))
    try:
        (tensor,) = read_header(file).values()
    except UnverifiedModelError:
        return
    assert tensor.elements * {"F32": 4, "BF16": 2}[tensor.dtype] == extra
    assert entry["data_offsets"] == [0, extra]
