"""The planner's memory against DeepSpeed's arithmetic, and against what autograd really keeps."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import (
    AutoModelForCausalLM,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5TextConfig,
)

from benchmarks.memory import PeakTracker, tracked_peak
from entrypoint.batch import BatchShape
from entrypoint.hardware import GIB
from entrypoint.memory import (
    ENGINE_WORKSPACE_BYTES,
    ModelShape,
    TrainerLoad,
    layer_bytes,
    trainer_activations,
    trainer_states,
)
from entrypoint.model_facts import shape_of
from entrypoint.pretended import pretend_hardware
from entrypoint.topology import plan_topology
from entrypoint.workload import duels
from miner.config.contract import DUEL_TURN_TOKENS
from miner.inference.transformers.batching import MAX_FORWARD_TOKENS
from tests.entrypoint.test_topology import MODELS as SIZES


def states(size: str, ranks: int, stage: Literal[0, 2, 3]) -> int:
    load = TrainerLoad(SIZES[size], "full", ranks, stage, 4096)
    return sum(size for _, size in trainer_states(load))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("size", SIZES)
def test_states_are_at_least_what_deepspeed_estimates(size: str, ranks: int) -> None:
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3", reason="make setup")
    stage2 = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2", reason="make setup")
    shape = SIZES[size]
    _, theirs = stage2.estimate_zero2_model_states_mem_needs(
        shape.parameters, num_gpus_per_node=ranks, cpu_offload=False
    )
    assert theirs <= states(size, ranks, 2) <= 1.1 * theirs + 4e9
    _, theirs, _ = stage3.estimate_zero3_model_states_mem_needs(
        shape.parameters,
        shape.vocabulary * shape.hidden,
        num_gpus_per_node=ranks,
        cpu_offload=False,
        cpu_offload_params=False,
    )
    assert theirs <= states(size, ranks, 3) <= 1.1 * theirs + 4e9


def test_without_deepspeed_states_take_eighteen_bytes_a_parameter() -> None:
    assert states("3B", 1, 0) == 18 * SIZES["3B"].parameters


def test_adapters_take_their_own_states_and_no_more() -> None:
    shape = SIZES["7B"]
    load = TrainerLoad(shape, "lora", 1, 0, 4096, lora_rank=16)
    adapters = shape.lora_parameters(16)
    assert sum(size for _, size in trainer_states(load)) == 2 * shape.parameters + 16 * adapters
    assert shape.lora_parameters(32) == 2 * adapters


def kept_per_token(
    layers: int, weights: torch.dtype, *, autocast: bool, lora: bool = False, tokens: int = 128
) -> float:
    """Bytes that autograd keeps for the backward pass, its own copies of weights left out.

    Adapters are as the trainer makes them: float32 under autocast, else (ZeRO) as the weights.
    """
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=layers,
        vocab_size=32,
    )
    model: Any = Qwen2ForCausalLM(config).to(weights)
    if lora:
        model.enable_input_require_grads()
        adapters = LoraConfig(r=4, target_modules="all-linear")
        model = get_peft_model(model, adapters, autocast_adapter_dtype=autocast).base_model.model
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tokens in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    within = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), within:
        model.model(torch.zeros(1, tokens, dtype=torch.long))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / tokens


@pytest.mark.parametrize(
    ("weights", "autocast", "lora", "compute_bytes"),
    [
        (torch.bfloat16, False, False, 2),
        (torch.float32, False, False, 4),
        (torch.float32, True, False, 2),
        (torch.bfloat16, False, True, 2),
        (torch.bfloat16, True, True, 2),
    ],
)
def test_a_layer_keeps_no_more_than_is_planned_and_not_much_less(
    weights: torch.dtype, autocast: bool, lora: bool, compute_bytes: int
) -> None:
    one, three = (kept_per_token(n, weights, autocast=autocast, lora=lora) for n in (1, 3))
    shape = ModelShape(1, 1, 64, 256, 4, 2, 16, 32, 1024)
    planned = layer_bytes(shape, compute_bytes, weights.itemsize)
    assert (three - one) / 2 <= planned <= 1.3 * (three - one) / 2


SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def mamba(width: int, state: int, chunk: int) -> NemotronHConfig:
    return NemotronHConfig(
        layers_block_type=["linear_attention"],
        intermediate_size=1024,
        mamba_num_heads=24,
        mamba_head_dim=width,
        ssm_state_size=state,
        chunk_size=chunk,
        **SMALL,
    )


DELTA = Qwen3_5TextConfig(
    num_hidden_layers=1,
    intermediate_size=768,
    layer_types=["linear_attention"],
    linear_num_value_heads=8,
    linear_num_key_heads=4,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    **SMALL,
)


@pytest.mark.parametrize(
    "config",
    [mamba(32, 64, 64), mamba(80, 128, 256), DELTA],
    ids=["Mamba 2", "wider heads", "gated delta rule"],
)
def test_a_recurrent_layer_takes_no_more_than_is_planned_and_not_much_less(config: Any) -> None:
    """By torch's operations: the image has no kernels for them."""
    shape = shape_of(config.to_dict(), 1)
    loads = [TrainerLoad(shape, "full", 1, 0, tokens) for tokens in (512, 1024)]
    few, many = (tracked_peak(config, load, rows=1) for load in loads)
    planned = [dict(trainer_activations(load))["activations"] for load in loads]
    assert many - few <= planned[1] - planned[0] <= 1.3 * (many - few)


def own_cache(config: Any, rows: int, tokens: int) -> tuple[int, int]:
    """Bytes of the cache that a model fills in one forward of its own, and of all else in it."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model.to_empty(device="cpu").eval()
        tracker = PeakTracker()
        tracker.track_external(model)
        with tracker:
            ids = torch.zeros((rows, tokens), dtype=torch.int64)
            found = model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1)
        recurrent, attention = found.past_key_values.layers
        states = (recurrent.conv_states[0], recurrent.recurrent_states[0])
        tensors = (*states, attention.keys, attention.values)
        held = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        weights = sum(weight.nbytes for weight in model.parameters())
        return held, tracker.peak - weights - held


def test_the_trainers_own_cache_of_a_hybrid_takes_what_is_planned() -> None:
    """With the real sizes of both kinds of layers."""
    kinds = ["linear_attention", "full_attention"]
    config = OlmoHybridConfig(num_hidden_layers=2, layer_types=kinds)
    rows = MAX_FORWARD_TOKENS // DUEL_TURN_TOKENS
    held, forward = own_cache(config, rows, DUEL_TURN_TOKENS)
    shape = shape_of(config.to_dict(), 1)
    copied = DUEL_TURN_TOKENS * shape.kv_bytes_per_token // 2
    assert rows * (shape.episode_bytes(DUEL_TURN_TOKENS, served=False) - copied) == held
    assert forward <= ENGINE_WORKSPACE_BYTES <= 3 * forward
    assert shape.episode_bytes(1000, served=True) == 1000 * shape.kv_bytes_per_token


def test_a_hybrids_layers_count_as_attention_where_the_sizes_of_states_are_missing() -> None:
    known = OlmoHybridConfig().to_dict()
    unknown = shape_of(known | {"linear_key_head_dim": None}, 1)
    assert (unknown.recurrent_layers, unknown.state_bytes) == (0, 0)
    assert shape_of(known, 1).recurrent_layers == 24


def test_sizes_of_a_recurrence_count_where_a_layer_has_one() -> None:
    plain = NEMOTRON_4B | {"layers_block_type": ["attention"] * 40}
    assert shape_of(NEMOTRON_4B).mixer_bytes > 6 * 10**5
    assert shape_of(plain).mixer_bytes == 0


def test_a_hybrid_base_gets_smaller_passes_that_are_recomputed() -> None:
    plain = SIZES["3B"]
    [like_it, hybrid] = (
        plan_topology(
            pretend_hardware("1xH100-80GB"), replace(plain, mixer_bytes=mixer), BatchShape()
        )
        for mixer in (0, shape_of(NEMOTRON_4B).mixer_bytes)
    )
    assert hybrid.checkpointing
    assert hybrid.pass_tokens < like_it.pass_tokens
    assert all(moment.fits for moment in hybrid.memory)


def test_mounted_data_costs_a_hybrid_base_its_longest_conversations_and_not_its_games() -> None:
    shape = replace(SIZES["3B"], mixer_bytes=13 * 10**6)
    batch = BatchShape(servers=0, work=duels(["othello"], 8), episode_tokens=8192, mounted=True)
    planned = plan_topology(pretend_hardware("1xH100-80GB"), shape, batch)
    assert planned.layout == "colocated"
    assert batch.held <= planned.episode_tokens < 8192
    assert all(moment.fits for moment in planned.memory)


NEMOTRON_4B = {
    "layers_block_type": ["mamba"] * 21 + ["mlp"] * 17 + ["attention"] * 4,
    "hidden_size": 3136,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 131072,
    "mamba_num_heads": 96,
    "mamba_head_dim": 80,
    "chunk_size": 128,
}
"""Sizes of its kind, in the form in which transformers saves them: without a number of layers."""


def test_recomputing_keeps_far_less_and_a_pass_of_twice_the_tokens_twice_as_much() -> None:
    def activations(tokens: int, *, checkpointing: bool) -> int:
        load = TrainerLoad(SIZES["3B"], "full", 1, 0, tokens, checkpointing=checkpointing)
        return dict(trainer_activations(load))["activations"]

    assert activations(8192, checkpointing=True) == 2 * activations(4096, checkpointing=True)
    assert activations(4096, checkpointing=True) < activations(4096, checkpointing=False) / 5


def test_a_frozen_head_has_no_gradient() -> None:
    shape = SIZES["7B"]
    full, lora = (
        dict(trainer_activations(TrainerLoad(shape, tuning, 1, 0, 8192)))["output head"]
        for tuning in ("full", "lora")
    )
    assert full - lora == 6 * shape.vocabulary * shape.hidden


def test_on_gpus_logits_are_never_whole() -> None:
    shape = SIZES["0.5B"]
    tiles = dict(trainer_activations(TrainerLoad(shape, "full", 1, 0, 32768)))["output head"]
    assert tiles < 4 * GIB
    whole = dict(trainer_activations(TrainerLoad(shape, "full", 1, 0, 32768, fused_head=False)))
    assert whole["logits"] > 30 * GIB


def test_an_episode_longer_than_a_pass_is_planned_with_rows_that_begin_like_it() -> None:
    shape = SIZES["0.5B"]

    def activations(**tokens: int) -> int:
        plan = plan_topology(pretend_hardware("1xH100-80GB"), shape, BatchShape(**tokens))
        return dict(plan.memory[0].items)["activations"]

    assert activations(pass_tokens=4096, episode_tokens=8192) == activations(
        pass_tokens=10240, episode_tokens=8192
    )
