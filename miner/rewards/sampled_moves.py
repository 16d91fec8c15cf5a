"""Credit for sampled moves: how much better each was than what the policy plays there on average.

    A_t = Q(s_t, a_t) - sum over a of pi(a | s_t) Q(s_t, a)

with Q from a critic and pi from how the policy has bid so far. The opponent's cards and the prizes
to come are averaged out in Q, so that a move's advantage has neither their noise nor that of the
moves after it; what the critic does not know of the policy is its error. A reply that is no action
has no move: its advantage is the penalty for it. Nothing is compared within a group, so that one
episode of each game is enough: what all members of a group do alike would have no advantage.
"""

from collections.abc import Sequence

from miner.config.contract import agent_seat
from miner.rewards.critic import CriticCredit
from miner.rewards.episode import is_faulty
from miner.rewards.goofspiel_critic import GoofspielCritic
from miner.rollout.trajectory import Trajectory

UNIT = 0.05
"""Chance to win that is an advantage of 1: about what a move at random gives away."""


class SampledMoves(CriticCredit):
    """Advantages by turn.

    Args:
        critic: values ids of actions.
        penalty: taken off for each reply without an action or cut off.
    """

    def __init__(self, critic: GoofspielCritic, penalty: float) -> None:
        super().__init__(critic)
        self._mean = critic.mean
        self._penalty = penalty

    def __call__(self, group: Sequence[Trajectory | None]) -> list[list[float]]:
        """Of each member the advantage of each turn; none of a lost one, which is None."""
        return [[] if episode is None else self._by_turn(episode) for episode in group]

    def _by_turn(self, episode: Trajectory) -> list[float]:
        seat, found = agent_seat(episode.task.seed), []
        for at, turn in enumerate(episode.turns):
            shown, values = self._values_at(episode, at, seat)
            gain, move = 0.0, str(turn.action)
            if turn.valid and move in values:
                gain = values[move] - self._mean(shown, seat, values)
                self._note(shown, seat, {move: 1.0})
                self._regrets.append(max(values.values()) - values[move])
            found.append((gain - self._penalty * is_faulty(turn)) / UNIT)
        return found
