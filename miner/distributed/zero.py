"""What DeepSpeed's ZeRO-3 changes for everybody else: no process holds the whole model."""

from __future__ import annotations

import json
from typing import Any

import torch

from miner.config.settings import Settings
from miner.environments import ConfigurationError


def zero_stage(settings: Settings) -> int:
    """ZeRO's stage in the file `optimizer.deepspeed`; 0 without DeepSpeed.

    Raises: `ConfigurationError` if the file cannot be read.
    """
    file = settings.optimizer.deepspeed
    if file is None:
        return 0
    try:
        stage = json.loads(file.read_text()).get("zero_optimization", {}).get("stage", 0)
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"optimizer.deepspeed {file} is no DeepSpeed configuration in JSON: {error}"
        ) from None
    return int(stage)


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
