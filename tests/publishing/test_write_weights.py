"""Weights in memory become the base's folder with other weights, in the base's dtype."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM

from miner.inference.merged_weights import weights_on_cpu
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.structure import read_headers
from miner.publishing.verify import verify_model
from miner.publishing.write_weights import base_dtype, write_trained_model
from tests.publishing.changes import change_weights


def companions(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix != ".safetensors"}


@pytest.fixture
def trained(trained_model: Path) -> Qwen3ForCausalLM:
    """What a trainer in float32 holds."""
    model: Qwen3ForCausalLM = AutoModelForCausalLM.from_pretrained(
        trained_model, dtype=torch.float32
    )
    return model


def test_weights_are_cast_to_the_dtype_of_the_base(
    base_model: Path, trained_model: Path, trained: Qwen3ForCausalLM, destination: Path
) -> None:
    write_trained_model(base_model, trained, weights_on_cpu(trained), destination)
    expected = load_file(trained_model / "model.safetensors")
    found = load_file(destination / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_everything_but_the_weights_is_the_bases_own(
    base_model: Path, trained: Qwen3ForCausalLM, destination: Path
) -> None:
    """Such as "rope_theta", which a newer transformers writes as "rope_parameters"."""
    write_trained_model(base_model, trained, weights_on_cpu(trained), destination)
    assert companions(destination) == companions(base_model)
    assert verify_model(destination, load=True).dtypes == {"BF16": 1336}


def test_no_file_is_added_that_the_base_does_not_have(
    model: Path, trained: Qwen3ForCausalLM, destination: Path
) -> None:
    (model / "generation_config.json").unlink()
    write_trained_model(model, trained, weights_on_cpu(trained), destination)
    assert set(os.listdir(destination)) == set(os.listdir(model))


def test_single_tensors_keep_their_own_dtype(
    model: Path, trained: Qwen3ForCausalLM, destination: Path
) -> None:
    def widen_norm(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].float()

    change_weights(model, widen_norm)
    write_trained_model(model, trained, weights_on_cpu(trained), destination)
    found = load_file(destination / "model.safetensors")
    wide = {name for name, tensor in found.items() if tensor.dtype == torch.float32}
    assert wide == {"model.norm.weight"}


def test_names_without_the_models_prefix_are_kept(model: Path, destination: Path) -> None:
    def shorten(tensors: dict[str, torch.Tensor]) -> None:
        for name in [*tensors]:
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    change_weights(model, shorten)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    write_trained_model(model, loaded, weights_on_cpu(loaded), destination)
    assert read_headers(destination) == read_headers(model)


def _rename(tensors: dict[str, torch.Tensor]) -> None:
    tensors["last_norm.weight"] = tensors.pop("model.norm.weight")


def _lengthen(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(12)


def test_a_tensor_of_another_shape_is_refused(
    model: Path, trained: Qwen3ForCausalLM, destination: Path
) -> None:
    change_weights(model, _lengthen)
    with pytest.raises(UnverifiedModelError, match=r"norm\.weight' of shape \(8,\) is \(12,\)"):
        write_trained_model(model, trained, weights_on_cpu(trained), destination)
    assert not any(destination.iterdir())


def test_a_tensor_without_a_counterpart_is_published_with_a_warning(
    model: Path, trained: Qwen3ForCausalLM, destination: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hours of learning are not lost to a name that servers may well know."""
    change_weights(model, _rename)
    write_trained_model(model, trained, weights_on_cpu(trained), destination)
    assert "'model.norm.weight' has no counterpart" in caplog.text
    assert "model.norm.weight" in read_headers(destination)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float8_e4m3fn, torch.bfloat16),
    ],
)
def test_base_dtype_is_that_of_most_parameters(
    model: Path, stored: torch.dtype, expected: torch.dtype
) -> None:
    def recast(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if "norm" not in name:
                tensors[name] = tensors[name].to(stored)

    change_weights(model, recast)
    assert base_dtype(model) == expected
