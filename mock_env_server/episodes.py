"""An episode of the training API; a finished one keeps no game, only what /state answers."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from miner.environments.games.session import GameSession


@dataclass(slots=True)
class Episode:
    """One game played over /reset and /step.

    Attributes:
        session: the game; None once it is over.
        fixed_info: the part of `info` that never changes.
        observation: text that /state shows now.
        steps: moves made, the opponent's included; a simultaneous move counts once.
        events_seen: length of the game's history that is counted in `steps`.
        last_opponent_action: None before the opponent's first move.
        total_reward: sum of the rewards of accepted steps.
        thinking: true if a move is being computed right now.
    """

    session: GameSession | None
    fixed_info: dict[str, Any]
    observation: str = ""
    steps: int = 0
    events_seen: int = 0
    last_opponent_action: int | None = None
    total_reward: float = 0.0
    done: bool = False
    thinking: bool = False
    episode_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def info(self) -> dict[str, Any]:
        """The `info` of an answer about this episode."""
        info = self.fixed_info | {
            "step_count": self.steps,
            "cumulative_reward": self.total_reward,
        }
        if self.last_opponent_action is not None:
            info["last_opponent_action"] = self.last_opponent_action
        return info
