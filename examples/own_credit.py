"""Credit by an idea of one's own, in place of the trainer's.

python -m miner train reward.credit=own reward.entry=examples/own_credit.py:credit ...
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from miner.rollout.trajectory import Trajectory


def credit(group: Sequence[Trajectory | None]) -> list[list[float] | None]:
    """The episode's advantage, for turns alone at which the group's members differed.

    A reply that all members gave at the same turn explains no difference between their scores.

    Args:
        group: episodes of one task; None for one that was lost.

    Returns: of each an advantage for every turn.
    """
    played = [episode for episode in group if episode is not None]
    scores = [episode.score for episode in played]
    mean, deviation = fmean(scores), pstdev(scores) or 1.0

    def differ(turn: int) -> bool:
        return len({e.turns[turn].reply for e in played if turn < len(e.turns)}) > 1

    return [
        episode
        and [
            (episode.score - mean) / deviation if differ(turn) else 0.0
            for turn in range(len(episode.turns))
        ]
        for episode in group
    ]
