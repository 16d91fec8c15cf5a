"""What training saved becomes the base's folder with other weights, in the base's dtype."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.merge import base_dtype, write_trained_model
from miner.publishing.verify import verify_model
from tests.publishing.changes import change_weights, set_json, shard

UP = "model.layers.0.mlp.up_proj"


@pytest.fixture
def adapter(base_model: Path, tmp_path: Path) -> Path:
    """A rank-2 adapter on all linear layers, with weights that matter."""
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
    settings = LoraConfig(r=2, lora_alpha=6, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(base, settings)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def companions(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.suffix != ".safetensors"}


class TestAdapter:
    """LoRA."""

    def test_is_merged_in_float32_and_rounded_once(
        self, base_model: Path, adapter: Path, destination: Path
    ) -> None:
        write_trained_model(base_model, adapter, destination)
        low_rank = load_file(adapter / "adapter_model.safetensors")
        prefix = f"base_model.model.{UP}"
        delta = low_rank[f"{prefix}.lora_B.weight"] @ low_rank[f"{prefix}.lora_A.weight"]
        base = load_file(base_model / "model.safetensors")[f"{UP}.weight"]
        expected = (base.float() + 6 / 2 * delta).bfloat16()
        merged = load_file(destination / "model.safetensors")[f"{UP}.weight"]
        assert torch.equal(merged, expected)
        assert not torch.equal(merged, base)

    def test_result_is_the_base_folder_with_other_weights(
        self, base_model: Path, adapter: Path, destination: Path
    ) -> None:
        write_trained_model(base_model, adapter, destination)
        assert companions(destination) == companions(base_model)
        report = verify_model(destination, load=True)
        assert report.dtypes == {"BF16": 1336}

    def test_no_file_is_added_that_the_base_does_not_have(
        self, model: Path, adapter: Path, destination: Path
    ) -> None:
        (model / "generation_config.json").unlink()
        write_trained_model(model, adapter, destination)
        assert set(os.listdir(destination)) == set(os.listdir(model))

    def test_merged_model_computes_what_the_adapted_one_does(
        self, base_model: Path, adapter: Path, destination: Path
    ) -> None:
        from peft import PeftModel

        write_trained_model(base_model, adapter, destination)
        base = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.float32)
        adapted = PeftModel.from_pretrained(base, adapter).eval()
        merged = AutoModelForCausalLM.from_pretrained(destination, dtype=torch.float32).eval()
        ids = torch.tensor([[3, 5, 6, 7]])
        with torch.inference_mode():
            expected, found = adapted(ids).logits, merged(ids).logits
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)

    @pytest.mark.filterwarnings("ignore:Found missing adapter keys")
    def test_of_another_model_is_refused(
        self, base_model: Path, adapter: Path, destination: Path
    ) -> None:
        file = adapter / "adapter_model.safetensors"
        tensors = load_file(file)
        save_file({name.replace("layers", "blocks"): t for name, t in tensors.items()}, file)
        with pytest.raises(PublishingError, match="does not fit the base model"):
            write_trained_model(base_model, adapter, destination)


class TestFullWeights:
    """Full fine-tuning."""

    @pytest.fixture
    def checkpoint(self, trained_model: Path, tmp_path: Path) -> Path:
        """What a trainer in float32 saves: new-style configuration, weights in float32."""
        model = AutoModelForCausalLM.from_pretrained(trained_model, dtype=torch.float32)
        model.save_pretrained(tmp_path / "checkpoint")
        return tmp_path / "checkpoint"

    def test_is_cast_to_the_dtype_of_the_base(
        self, base_model: Path, trained_model: Path, checkpoint: Path, destination: Path
    ) -> None:
        assert verify_model_dtypes(checkpoint) == {"float32"}
        write_trained_model(base_model, checkpoint, destination)
        expected = load_file(trained_model / "model.safetensors")
        found = load_file(destination / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    def test_configuration_is_the_one_of_the_base(
        self, base_model: Path, checkpoint: Path, destination: Path
    ) -> None:
        assert b"rope_parameters" in (checkpoint / "config.json").read_bytes()
        write_trained_model(base_model, checkpoint, destination)
        assert companions(destination) == companions(base_model)
        verify_model(destination, load=True)

    def test_single_tensors_keep_their_own_dtype(
        self, model: Path, checkpoint: Path, destination: Path
    ) -> None:
        def widen_norm(tensors: dict[str, torch.Tensor]) -> None:
            tensors["model.norm.weight"] = tensors["model.norm.weight"].float()

        change_weights(model, widen_norm)
        write_trained_model(model, checkpoint, destination)
        found = load_file(destination / "model.safetensors")
        wide = {name for name, tensor in found.items() if tensor.dtype == torch.float32}
        assert wide == {"model.norm.weight"}

    def test_in_shards(self, base_model: Path, checkpoint: Path, destination: Path) -> None:
        shard(checkpoint)
        write_trained_model(base_model, checkpoint, destination)
        assert len(list(destination.glob("model-*.safetensors"))) > 1
        assert verify_model(destination, load=True).dtypes == {"BF16": 1336}

    def test_of_a_base_without_safetensors_is_cast_to_the_configured_dtype(
        self, model: Path, checkpoint: Path, destination: Path
    ) -> None:
        (model / "model.safetensors").unlink()
        write_trained_model(model, checkpoint, destination)
        assert verify_model(destination, load=True).dtypes == {"BF16": 1336}

    def test_truncated_checkpoint_is_refused(
        self, base_model: Path, checkpoint: Path, destination: Path
    ) -> None:
        os.truncate(checkpoint / "model.safetensors", 3000)
        with pytest.raises(UnverifiedModelError, match="truncated"):
            write_trained_model(base_model, checkpoint, destination)


def verify_model_dtypes(folder: Path) -> set[str]:
    tensors = load_file(folder / "model.safetensors").values()
    return {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}


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


@pytest.mark.parametrize(
    ("named", "expected"),
    [("float16", torch.float16), ("float32", torch.float32), (None, torch.bfloat16)],
)
def test_base_dtype_without_safetensors_is_the_configured_one(
    model: Path, named: str | None, expected: torch.dtype
) -> None:
    (model / "model.safetensors").unlink()
    set_json(model / "config.json", torch_dtype=named)
    assert base_dtype(model) == expected
