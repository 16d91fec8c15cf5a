"""Critics, as credit for all legal moves asks them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from miner.environments.base import EpisodeTask, Message
from miner.rewards.goofspiel_critic import Bid


class Critic(Protocol):
    """Values the legal replies of one or more games."""

    def values(self, shown: Sequence[Message], task: EpisodeTask) -> Mapping[str, float] | None:
        """Chance to win by the text of each legal reply; None where `shown` holds no position.

        Args:
            shown: the messages since the policy's last reply.
            task: the episode's; it names the game and gives the policy's seat.
        """

    def bid(
        self, shown: Sequence[Message], task: EpisodeTask, target: Mapping[str, float]
    ) -> Bid | None:
        """Return what a critic can learn from `target`, the policy's share of each reply."""

    def learn(self, bids: Sequence[Bid]) -> None:
        """Take note of how the policy bids."""
