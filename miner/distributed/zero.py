"""How DeepSpeed is configured, and what ZeRO-3 changes: no process holds the whole model."""

from __future__ import annotations

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


def gathered_weights(trainer: Any) -> dict[str, torch.Tensor] | None:
    """The whole model on rank 0, for which all ranks have to ask; None where each has it anyway.

    Args:
        trainer: transformers' Trainer, or one derived from it.
    """
    plugin = trainer.accelerator.state.deepspeed_plugin
    if plugin is None or plugin.zero_stage != 3:
        return None
    state: dict[str, torch.Tensor] | None = trainer.accelerator.get_state_dict(trainer.deepspeed)
    return state or {}
