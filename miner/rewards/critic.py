"""What credit by a critic has in common, for all legal moves or for those that were sampled."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from miner.environments.base import Message
from miner.rewards.goofspiel_critic import Bid
from miner.rollout.trajectory import Trajectory

Seen = tuple[list[Bid], list[float]]
"""Bids that the policy makes, and what the critic's best move would have added to each move."""


class Critic(Protocol):
    """Values the legal replies of one or more games."""

    def values(self, shown: Sequence[Message], seat: int) -> Mapping[str, float] | None:
        """Chance to win by the text of each legal reply; None where `shown` holds no position.

        Args:
            shown: the messages since the policy's last reply.
            seat: the policy's.
        """

    def bid(self, shown: Sequence[Message], seat: int, target: Mapping[str, float]) -> Bid | None:
        """What `target`, the share of each reply there, lets the critic know of the policy."""

    def learn(self, bids: Sequence[Bid]) -> None:
        """Take note of how the policy bids."""


class CriticCredit:
    """Keeps a critic informed of the policy, and counts what its moves give away.

    Attributes:
        regret: mean over the latest games' trained moves of what the critic's best one would have
            added to the chance to win; NaN before any.
    """

    def __init__(self, critic: Critic) -> None:
        self._critic = critic
        self._bids: list[Bid] = []
        self._regrets: list[float] = []
        self.regret = math.nan

    def learn(self, gather: Callable[[Seen], list[Seen]]) -> None:
        """Let the critic know of the policy since the last call; collective.

        Args:
            gather: what this rank has seen -> what all ranks have.
        """
        seen = gather((self._bids, self._regrets))
        self._bids, self._regrets = [], []
        self._critic.learn([bid for bids, _ in seen for bid in bids])
        regrets = [regret for _, some in seen for regret in some]
        self.regret = fmean(regrets) if regrets else math.nan

    def _note(self, shown: Sequence[Message], seat: int, target: Mapping[str, float]) -> None:
        """Keep for `learn` that the policy plays `target` here."""
        if bid := self._critic.bid(shown, seat, target):
            self._bids.append(bid)

    def _values_at(
        self, trajectory: Trajectory, turn: int, seat: int
    ) -> tuple[Sequence[Message], Mapping[str, float]]:
        """The position of a turn and the values of its legal replies, none where none was shown."""
        # after an invalid reply the position is still the one shown before
        for each in reversed(trajectory.turns[: turn + 1]):
            if values := self._critic.values(each.messages, seat):
                return each.messages, values
        return (), {}
