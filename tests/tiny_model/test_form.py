"""How a base that knows a form only is trained."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from miner.tiny_model.form import descend


def test_the_learning_rate_rises_early_and_then_falls_to_nothing() -> None:
    """With a gradient that stays, a step of Adam's is as long as the rate."""
    model: Any = torch.nn.Linear(1, 1, bias=False)
    seen = [float(model.weight.detach())]
    descend(
        model,
        lambda: model.weight.sum(),
        steps=100,
        learning_rate=0.1,
        progress=lambda step, loss: seen.append(float(model.weight.detach())),
    )
    lengths = [before - after for before, after in pairwise(seen)]
    longest = lengths.index(max(lengths))
    assert 0 < longest < 50
    assert lengths[0] < 0.1 * lengths[longest]
    assert lengths[-1] < 0.01 * lengths[longest]
    assert not model.training
