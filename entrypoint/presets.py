"""Starting values of the optimizer by the size of the model, with where each comes from.

Only the smallest size has been trained by this project (docs/learning.md). The other rows are
starting points by common practice, not results; whoever has GPUs should replace them by what a
sweep shows, and `--set optimizer.learning_rate=...` wins over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entrypoint.memory import Tuning


@dataclass(frozen=True)
class Preset:
    """One row: models of up to `parameters` parameters; peak learning rates; why these."""

    parameters: float
    full: float
    lora: float
    warmup_steps: int
    why: str

    def learning_rate(self, tuning: Tuning) -> float:
        """The peak learning rate for a way of tuning."""
        return self.full if tuning == "full" else self.lora


PRESETS: Sequence[Preset] = (
    Preset(20e6, 4e-4, 4e-3, 2, "half of the demo's, measured too (docs/learning.md)"),
    Preset(
        1e9, 3e-6, 3e-5, 5, "not tried: above TRL's default of 1e-6, since small models bear it"
    ),
    Preset(4e9, 2e-6, 2e-5, 5, "not tried: between its neighbours"),
    Preset(float("inf"), 1e-6, 1e-5, 5, "not tried: TRL's default for GRPO"),
)
"""By ascending size. Adapters get ten times the rate of full fine-tuning: they start at zero."""


def preset_for(parameters: int) -> Preset:
    """The first row that a model of this size fits into."""
    return next(preset for preset in PRESETS if parameters <= preset.parameters)
