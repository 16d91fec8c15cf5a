"""How DeepSpeed is configured, and what ZeRO-3 changes: no process holds the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


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


def gathered(parameters: Sequence[torch.nn.Parameter]) -> AbstractContextManager[None]:
    """Inside, parameters that ZeRO-3 spreads over the processes are whole on each; collective."""
    if not any(hasattr(parameter, "ds_id") for parameter in parameters):
        return nullcontext()
    import deepspeed  # takes seconds, and only GPU machines have it

    whole: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(list(parameters))
    return whole
