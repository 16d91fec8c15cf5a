"""Advantages per turn: each turn's return against the same round of the other group members.

Episode-level advantages are TRL's own. A baseline by round compares like with like: all members of
a group face the same prizes and the same opponent stream in round t.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

TurnReward = tuple[int, float]
"""(round of the game, reward of the reply): a retried reply is another turn of the same round."""

EPSILON = 1e-4  # as in TRL's GRPOTrainer: keeps a group of almost equal returns from exploding


def returns_to_go(rewards: Sequence[float]) -> list[float]:
    """Sum of the rewards from each turn on (shape: turns)."""
    return list(accumulate(reversed(rewards)))[::-1]


def turn_advantages(
    rows: Sequence[Sequence[TurnReward] | None], group_size: int
) -> list[list[float]]:
    """Advantage of every turn of every row, divided by its group's standard deviation.

    Args:
        rows: per episode its turns' rewards (ragged), or None for an episode that was lost;
            consecutive `group_size` rows are a group.

    Returns:
        Per row one advantage per turn; an empty list for a lost row.

    Source: GRPO (arXiv 2402.03300), process supervision of section 4.1.3, baseline by round.
    """
    advantages: list[list[float]] = []
    for start in range(0, len(rows), group_size):
        differences, deviation = differences_by_round(rows[start : start + group_size])
        advantages += [[each / (deviation + EPSILON) for each in row] for row in differences]
    return advantages


def differences_by_round(
    group: Sequence[Sequence[TurnReward] | None],
) -> tuple[list[list[float]], float]:
    """Per row each turn's difference to its round's baseline, and their standard deviation.

    The baseline of a round is the mean return over all turns of the group in that round: a lost
    member moves none, and a round that a single turn reached has the difference 0. The deviation is
    pooled over rounds: the same as TRL's where every episode has one return.
    """
    returns = [_with_returns(row or ()) for row in group]
    by_round: dict[int, list[float]] = defaultdict(list)
    for row in returns:
        for number, value in row:
            by_round[number].append(value)
    baseline = {number: sum(values) / len(values) for number, values in by_round.items()}
    differences = [[value - baseline[number] for number, value in row] for row in returns]
    squares = sum(each**2 for row in differences for each in row)
    freedom = sum(len(values) - 1 for values in by_round.values())
    return differences, math.sqrt(squares / freedom) if freedom else 0.0


def _with_returns(row: Sequence[TurnReward]) -> list[tuple[int, float]]:
    """(round, return) of each turn."""
    returns = returns_to_go([reward for _, reward in row])
    return [(number, value) for (number, _), value in zip(row, returns, strict=True)]
