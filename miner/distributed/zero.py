"""Configuration of DeepSpeed, and weights under ZeRO-3: no process holds the whole model."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers.integrations import deepspeed as integration


def deepspeed_config(stage: int) -> dict[str, Any]:
    """DeepSpeed's configuration for a stage of ZeRO; sizes of batches are left to transformers.

    None of it is a setting: what is tested is what ships.
    """
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
    }


def gathered(
    parameters: Sequence[torch.nn.Parameter], *, changed: bool = False
) -> AbstractContextManager[None]:
    """Inside, parameters that ZeRO-3 spreads over the processes are whole on each; collective.

    Args:
        changed: true if they are written to; those of rank 0 count.
    """
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    import deepspeed  # takes seconds, and only GPU machines have it

    whole: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(
        list(parameters), modifier_rank=0 if changed else None
    )
    return whole


@contextmanager
def loading_whole() -> Iterator[None]:
    """Inside, transformers loads a model whole, where under ZeRO-3 it would spread it."""
    held = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = held


def until_spread(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Inside, a model that ZeRO-3 has not spread yet computes without DeepSpeed, which TRL's head
    would ask for its parts; one that it has spread is left as it is."""
    spread = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    return nullcontext() if spread else loading_whole()


def release_prefetched(model: torch.nn.Module) -> None:
    """Wait for weights that ZeRO-3 has asked for ahead of a way back that does not come, and let
    them go: gathering them meanwhile would fail. `model` is DeepSpeed's engine, or no such one."""
    release = getattr(model, "empty_partition_cache", None)
    if release is not None:
        release()


def refresh_masters(engine: Any) -> None:
    """Have DeepSpeed's float32 copies follow weights that were written from outside."""
    engine.optimizer.refresh_fp32_params()
