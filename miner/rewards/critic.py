"""Critics, as credit for all legal moves asks them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from miner.environments.base import EpisodeTask, Message


class Critic(Protocol):
    """Values the legal replies of one or more games."""

    def values(self, shown: Sequence[Message], task: EpisodeTask) -> Mapping[str, float] | None:
        """Chance to win by the text of each legal reply, empty where it cannot be told; None where
        `shown` holds no position.

        Args:
            shown: the messages since the policy's last reply.
            task: the episode's; it names the game and gives the policy's seat.
        """
