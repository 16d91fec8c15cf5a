"""Reward of an episode: the graded score, and a penalty for replies that were no action."""

from itertools import accumulate
from typing import NamedTuple

from miner.rewards.advantages import TurnReward
from miner.rollout.trajectory import Trajectory, TurnRecord


class TurnParts(NamedTuple):
    """Summands of the reward of a turn; `round` as in `TurnReward`."""

    round: int
    score: float
    penalty: float


class EpisodeReward:
    """Rewards of finished episodes.

    Args:
        invalid_reply_penalty: taken off for each reply without an action, and for each that was
            cut off: graded replies are as long as they like, and their first legal number anywhere
            may be another one than that of the part which was played here.
        span: width of the range of an episode's summed rewards that is mapped to scores.
    """

    def __init__(self, invalid_reply_penalty: float, span: float = 1.0) -> None:
        self._penalty = invalid_reply_penalty
        self._span = span

    def total(self, trajectory: Trajectory) -> float:
        """Score in [0, 1] minus the penalty for each invalid or cut reply."""
        return trajectory.score - self._penalty * sum(map(is_faulty, trajectory.turns))

    def by_turn(self, trajectory: Trajectory) -> list[TurnReward]:
        """The same by turn, see `parts`."""
        return [(turn.round, sum(turn[1:])) for turn in self.parts(trajectory)]

    def parts(self, trajectory: Trajectory) -> list[TurnParts]:
        """Of each turn's reward: penalties and the environment's rewards where they arose.

        The last turn has the rest of the score, which is all of it in games. A reply that was no
        action leaves the round as it was.
        """
        turns = trajectory.turns
        rounds = accumulate((int(turn.valid) for turn in turns[:-1]), initial=0)
        scores = [turn.reward / self._span for turn in turns[:-1]]
        scores.append(trajectory.score - sum(scores))
        penalties = [-self._penalty if is_faulty(turn) else 0.0 for turn in turns]
        return list(map(TurnParts, rounds, scores, penalties))


def is_faulty(turn: TurnRecord) -> bool:
    """Return whether a reply was no action, or was cut off."""
    return not turn.valid or turn.finish_reason == "length"
