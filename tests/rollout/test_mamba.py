"""Mamba 2 computes what vLLM does."""

from math import inf
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from miner.rollout.mamba import prepare_mamba
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
FAMILIES: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 8,
    },
}


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


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


def test_a_loaded_folder_is_prepared(tmp_path: Path) -> None:
    [base] = [base for base in POOL if base.kind == "nemotron_h"]
    make_folder(base, tmp_path)
    model = load_model_folder(tmp_path, torch.float32).model
    [limit] = {m.time_step_limit for m in model.modules() if hasattr(m, "time_step_limit")}
    assert limit == (0.0, inf)
