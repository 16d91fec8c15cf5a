"""The episodes of the training API: who plays what.

Invariants: no more than `KEPT` episodes are remembered, those of the latest starts (the real server
forgets none); a finished one keeps no game, only what /state answers.
"""

import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from miner.environments.games.session import GameSession

KEPT = 20_000


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


class EpisodeStore:
    """Finds episodes by id."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._episodes: OrderedDict[str, Episode] = OrderedDict()

    def add(self, episode: Episode) -> None:
        """Remember a new episode."""
        self._episodes[episode.episode_id] = episode
        if len(self._episodes) > self._kept:
            self._episodes.popitem(last=False)

    def find(self, episode_id: str) -> Episode | None:
        """Return the episode with this id; None where there is none."""
        return self._episodes.get(episode_id)

    def remove(self, episode_id: str) -> bool:
        """Forget an episode; whether there was one."""
        return self._episodes.pop(episode_id, None) is not None

    def clear(self) -> None:
        """Forget everything, as a restarted server has."""
        self._episodes.clear()
