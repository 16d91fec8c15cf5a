"""Advantages per turn: each turn's return against the same turn of the other group members.

Episode-level advantages are TRL's own. A turn-level baseline compares like with like: all members
of a group face the same prizes and the same opponent stream in turn t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Scale = Literal["group", "batch", "none"]

EPSILON = 1e-4  # as in TRL's GRPOTrainer: keeps a group of almost equal returns from exploding


def returns_to_go(rewards: Sequence[float]) -> list[float]:
    """Undiscounted sum of the rewards from each turn on (shape: turns)."""
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total += reward
        returns.append(total)
    return returns[::-1]


def turn_advantages(
    group: Sequence[Sequence[float] | None], *, scale: Scale = "group", batch_std: float = 1.0
) -> list[list[float]]:
    """Advantage of every turn of every member of one group.

    Args:
        group: per member its rewards by turn (ragged), or None for an episode that was lost.
        scale: "group" divides by the standard deviation of the group's episode returns, "batch"
            by `batch_std`, "none" leaves differences as they are (Dr. GRPO, arXiv 2503.20783).

    Returns:
        Per member one advantage per turn; an empty list for a lost member. The baseline of turn t
        is the mean return-to-go over the members that reached turn t, so a lost member moves none,
        and a turn that a single member reached has advantage 0.

    Source: GRPO (arXiv 2402.03300, 4.1.3 process supervision) with a baseline per turn.
    """
    returns = [returns_to_go(rewards) if rewards is not None else [] for rewards in group]
    deviation = {
        "group": _std([r[0] for r in returns if r]) + EPSILON,
        "batch": batch_std + EPSILON,
        "none": 1.0,
    }[scale]
    advantages: list[list[float]] = [[0.0] * len(r) for r in returns]
    for turn in range(max(map(len, returns), default=0)):
        reached = [i for i, r in enumerate(returns) if len(r) > turn]
        baseline = sum(returns[i][turn] for i in reached) / len(reached)
        for i in reached:
            advantages[i][turn] = (returns[i][turn] - baseline) / deviation
    return advantages


def batch_turn_advantages(
    rows: Sequence[Sequence[float] | None], group_size: int, scale: Scale
) -> list[list[float]]:
    """`turn_advantages` of consecutive groups of `group_size` rows, in the rows' order."""
    batch_std = _std([sum(rewards) for rewards in rows if rewards is not None])
    return [
        member
        for start in range(0, len(rows), group_size)
        for member in turn_advantages(
            rows[start : start + group_size], scale=scale, batch_std=batch_std
        )
    ]


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1), 0 for fewer than two values, as TRL computes it."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
