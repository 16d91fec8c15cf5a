"""Critics, as credit for all legal moves asks them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from miner.environments.base import Message
from miner.rewards.goofspiel_critic import Bid


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
