"""The full check finds what headers cannot show: wrong values, wrong tensors, a dead tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from miner.config.contract import ServedDtype
from miner.publishing import load_check
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model
from tests.publishing.changes import change_weights, set_json, shard
from tests.publishing.killed_publisher import copy_of

Change = Callable[[Path, Callable[[dict[str, torch.Tensor]], object]], None]
NAME = "model.layers.0.mlp.up_proj.weight"


def put(value: float, name: str = NAME) -> Callable[[dict[str, torch.Tensor]], None]:
    """An edit that sets one weight."""

    def edit(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[-1] = value

    return edit


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite(model: Path, value: float) -> None:
    change_weights(model, put(value))
    assert verify_model(model, load=False).parameters > 0
    words = f"'{NAME}' holds values that are NaN"
    with pytest.raises(UnverifiedModelError, match=words):
        verify_model(model, load=True)
    of_a_base = verify_model(model, load=True, strict=False)
    assert any(words in warning for warning in of_a_base.warnings)


def test_nan_in_a_later_piece_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_check, "PIECE", 7)
    change_weights(model, put(float("nan")))
    with pytest.raises(UnverifiedModelError, match="NaN"):
        verify_model(model, load=True)


@pytest.mark.parametrize("value", [70000.0, -70000.0])
def test_beyond_float16(model: Path, value: float) -> None:
    change_weights(model, put(value))
    with pytest.raises(UnverifiedModelError, match="beyond float16"):
        verify_model(model, load=True)
    report = verify_model(model, load=True, strict=False)
    assert "beyond float16" in report.warnings[0]
    assert verify_model(model, load=True, dtype="bfloat16").loaded


@pytest.mark.parametrize("fresh", [True, False], ids=["in a fresh process", "in this one"])
def test_a_model_of_duels_is_published_beyond_float16(
    model: Path, tmp_path: Path, fresh: bool, in_this_process: list[str]
) -> None:
    change_weights(model, put(70000.0))

    served = {
        dtype: Publisher(tmp_path / dtype, in_process=not fresh, dtype=dtype) for dtype in DTYPES
    }
    served["bfloat16"].publish(copy_of(model), PublishedScore(1))
    with pytest.raises(UnverifiedModelError, match="beyond float16"):
        served["float16"].publish(copy_of(model), PublishedScore(1))


DTYPES: tuple[ServedDtype, ...] = ("float16", "bfloat16")


def test_largest_float16_number_is_fine(model: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            tensors[name] = tensors[name].float()
        tensors["model.embed_tokens.weight"][15, 0] = 65504.0  # a token that is never used

    change_weights(model, edit)
    report = verify_model(model, load=True, strict=False)
    assert not any("weight" in warning for warning in report.warnings)


def test_activations_beyond_float16(model: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "up_proj" in name or "gate_proj" in name or "down_proj" in name:
                tensor.fill_(3000.0)

    change_weights(model, edit)
    with pytest.raises(UnverifiedModelError, match="logits are not finite"):
        verify_model(model, load=True)
    of_a_base = verify_model(model, load=True, strict=False)
    assert any("logits are not finite" in warning for warning in of_a_base.warnings)


def test_underflow_is_not_refused(model: Path) -> None:
    change_weights(model, put(1e-20))
    assert verify_model(model, load=True).warnings == ()


def test_missing_tensor(model: Path) -> None:
    change_weights(model, lambda tensors: tensors.pop(NAME))
    assert verify_model(model, load=False).parameters > 0
    with pytest.raises(UnverifiedModelError, match=f"missing_keys .*{NAME}"):
        verify_model(model, load=True)


def test_tied_head_is_not_missing_and_untied_is(model: Path) -> None:
    verify_model(model, load=True)
    set_json(model / "config.json", tie_word_embeddings=False)
    with pytest.raises(UnverifiedModelError, match=r"missing_keys .*lm_head\.weight"):
        verify_model(model, load=True)


def test_wrong_shape(model: Path) -> None:
    set_json(model / "config.json", intermediate_size=12)
    with pytest.raises(UnverifiedModelError, match="mismatched_keys"):
        verify_model(model, load=True)


def test_unused_tensors_are_reported(model: Path) -> None:
    change_weights(model, lambda tensors: tensors.update(extra=torch.zeros(2)))
    assert "unused tensors, such as 'extra'" in verify_model(model, load=True).warnings[0]


def test_broken_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')
    with pytest.raises(UnverifiedModelError, match=r"tokenizer does not load: \w+: .*\w.*\.$"):
        verify_model(model, load=True)


def test_unknown_architecture(model: Path) -> None:
    set_json(model / "config.json", model_type="nonsense")
    with pytest.raises(UnverifiedModelError, match=r"does not load|tokenizer does not load"):
        verify_model(model, load=True)


def test_all_shards_are_read(model: Path) -> None:
    change_weights(model, put(float("nan"), "model.norm.weight"))
    shard(model)
    with pytest.raises(UnverifiedModelError, match=r"model\.norm\.weight"):
        verify_model(model, load=True)


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{{ messages[9].content }}"])
def test_weights_are_judged_where_the_chat_template_raises(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert verify_model(model, load=True, strict=False).parameters > 0
