"""Mamba 2 with our scan computes what transformers' own code does, and what vLLM does."""

import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.nemotron_h import modeling_nemotron_h

from miner.rollout.mamba import NAME, chunk_scan, prepare_mamba
from miner.rollout.model_folder import load_model_folder
from tests.base_models.pool import POOL, make_folder

torch.set_num_threads(1)

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
    },
    "granitemoehybrid": MAMBA | {"num_hidden_layers": 1, "layer_types": ["mamba"]},
    "falcon_h1": MAMBA | {"num_hidden_layers": 1, "mamba_d_ssm": 64},
    "bamba": MAMBA | {"num_hidden_layers": 1},
}


@pytest.fixture(scope="module")
def theirs() -> Callable[..., Any]:
    """transformers' scan, from a copy of its module: loading models replaces that in the other."""
    name = f"{modeling_nemotron_h.__name__}_copy"
    spec = importlib.util.spec_from_file_location(name, str(modeling_nemotron_h.__file__))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scan: Callable[..., Any] = inspect.unwrap(module.mamba2_chunk_scan)
    return scan


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def module_of(model: Any) -> Any:
    return sys.modules[type(model).__module__]


def drawn(length: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Two rows of six heads in two groups."""
    shapes = {
        "hidden_states": (2, length, 6, 5),
        "dt": (2, length, 6),
        "B": (2, length, 2, 4),
        "C": (2, length, 2, 4),
        "D": (6,),
        "dt_bias": (6,),
        "initial_states": (2, 6, 5, 4),
    }
    torch.manual_seed(length)
    values = {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}
    values["A"] = -4 * torch.rand(6, dtype=dtype)
    return {name: value.requires_grad_() for name, value in values.items()}


def results(scan: Callable[..., Any], given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, last states, and the gradients of all that is given."""
    found, states = scan(
        **given, chunk_size=8, dt_softplus=True, dt_limit=(0.2, 2.0), return_final_states=True
    )
    weights = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape).sin()
    total = (found * weights).sum() + states.square().sum()
    return [found, states, *torch.autograd.grad(total, [*given.values()])]


@pytest.mark.parametrize("started", [False, True], ids=["from nothing", "from states"])
@pytest.mark.parametrize("length", [1, 8, 21, 40])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_outputs_states_and_gradients_are_those_of_transformers(
    theirs: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    within: float,
    length: int,
    started: bool,
) -> None:
    if dtype == torch.float64:  # both compute in float32 by this call
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    given = drawn(length, dtype)
    if not started:
        del given["initial_states"]
    for found, expected in zip(results(chunk_scan, given), results(theirs, given), strict=True):
        torch.testing.assert_close(found, expected, atol=within, rtol=within)


def test_a_scan_without_bias_skip_or_states_gives_outputs_alone(theirs: Callable[..., Any]) -> None:
    given = drawn(21)
    bare = {name: given[name] for name in ("hidden_states", "A", "B", "C")}
    bare["dt"] = given["dt"].abs()
    found, expected = (scan(**bare, chunk_size=8, z=None) for scan in (chunk_scan, theirs))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_under_autocast_it_computes_in_float32_as_transformers_does(
    theirs: Callable[..., Any],
) -> None:
    given = drawn(21)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (results(scan, given)[0] for scan in (chunk_scan, theirs))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_this_scan_get_ours_and_compute_the_same(
    theirs: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    model = model_of(family)
    monkeypatch.setattr(module_of(model), NAME, theirs)
    for layer in model.modules():
        if hasattr(layer, "dt_bias"):
            torch.nn.init.normal_(layer.dt_bias)
    ids = torch.arange(42).reshape(2, 21)
    before = model(ids, use_cache=False).logits
    prepare_mamba(model)
    assert getattr(module_of(model), NAME) is chunk_scan
    torch.testing.assert_close(model(ids, use_cache=False).logits, before, atol=1e-5, rtol=1e-4)


def test_a_prompt_at_once_is_computed_as_token_by_token() -> None:
    """As vLLM does: transformers' own limit holds for several tokens alone."""
    model = model_of("nemotron_h").requires_grad_(False)
    prepare_mamba(model)
    mixer = model.model.layers[0].mixer
    mixer.in_proj.weight.normal_()
    mixer.in_proj.weight[-mixer.num_heads :] = 0.0  # time steps are the bias alone,
    mixer.dt_bias.fill_(-8.0)  # 0.0003, below transformers' limit,
    mixer.A_log.fill_(6.0)  # and states decay by 0.13 a token, by 0.33 with it
    mixer.D.zero_()
    ids = torch.arange(30)[None]
    cache = model(ids[:, :1], use_cache=True).past_key_values
    steps = [model(ids[:, n : n + 1], past_key_values=cache).logits[:, 0] for n in range(1, 30)]
    at_once = model(ids).logits[:, 1:]
    torch.testing.assert_close(torch.stack(steps, 1), at_once, atol=1e-6, rtol=1e-4)


def test_a_loaded_folder_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [base] = [base for base in POOL if base.kind == "nemotron_h"]
    make_folder(base, tmp_path)
    monkeypatch.setattr(modeling_nemotron_h, NAME, chunk_scan)  # is put back
    model = load_model_folder(tmp_path, torch.float32).model
    [limit] = {m.time_step_limit for m in model.modules() if hasattr(m, "time_step_limit")}
    assert limit == (0.0, inf)
    assert getattr(modeling_nemotron_h, NAME) is chunk_scan


def test_a_scan_with_other_arguments_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other(hidden_states: torch.Tensor, seq_idx: torch.Tensor) -> None: ...

    model = model_of("nemotron_h")
    monkeypatch.setattr(module_of(model), NAME, other)
    with caplog.at_level(logging.DEBUG, "miner"):
        prepare_mamba(model)
    assert getattr(module_of(model), NAME) is other
    assert "has other arguments" in caplog.text
