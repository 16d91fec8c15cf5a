"""Mamba 2 layers as vLLM computes them."""

from typing import Any


def prepare_mamba(model: Any) -> None:
    """Set the config's limits of time steps in a model's Mamba 2 layers, if it has any.

    transformers clamps a Nemotron's to `time_step_min`, meant for initial weights. vLLM does not.
    """
    limit = getattr(model.config.get_text_config(), "time_step_limit", None)
    for layer in model.modules():
        if hasattr(layer, "time_step_limit") and limit is not None:
            layer.time_step_limit = tuple(limit)
