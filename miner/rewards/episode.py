"""What an episode was worth to the learner: the graded score, a penalty for replies that were no
action, and optionally shaping. No strategy of any game is in it."""

from __future__ import annotations

from miner.environments.games.goofspiel import agent_seat
from miner.rewards.potential import Potential, shaped_rewards
from miner.rollout.trajectory import Trajectory


class EpisodeReward:
    """Rewards of finished episodes.

    Args:
        invalid_reply_penalty: taken off for each reply without an action.
        potential: shapes the rewards by turn; None leaves them as they are.
    """

    def __init__(self, invalid_reply_penalty: float, potential: Potential | None = None) -> None:
        self._penalty = invalid_reply_penalty
        self._potential = potential

    def total(self, trajectory: Trajectory) -> float:
        """Score in [0, 1] minus the penalty for each invalid reply."""
        return trajectory.score - self._penalty * trajectory.invalid_replies

    def by_turn(self, trajectory: Trajectory) -> list[float]:
        """The same by turn (shape: turns): penalties where they arose, the score in the last turn.

        With shaping the change of the potential is added; a reply that was no action leaves the
        state and the potential as they were.
        """
        turns = trajectory.turns
        rewards = [0.0 if turn.valid else -self._penalty for turn in turns]
        rewards[-1] += trajectory.score
        if self._potential is None:
            return rewards
        seat = agent_seat(trajectory.task.seed)
        potentials: list[float] = []
        for turn in turns:
            repeated = bool(potentials) and not turns[len(potentials) - 1].valid
            shown = turn.messages[-1]["content"]
            potentials.append(potentials[-1] if repeated else self._potential(shown, seat))
        return shaped_rewards(rewards, potentials)
