"""The episodes of the training API: who plays what, and for how long it is remembered.

Invariants:
* an episode without a request for `idle_expiry_s` seconds is gone at the next access;
* a finished episode keeps no game, only what /state answers; at most `finished_kept` of them stay
  (both unless episodes are set to leak).
"""

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from miner.environments.games.session import GameSession

FINISHED_KEPT = 10_000


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
        touched: time of the last access.
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
    touched: float = 0.0
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
    """Finds episodes by id and forgets them in time.

    Args:
        idle_expiry_s: seconds without an access after which an episode is forgotten.
        finished_kept: bound on finished episodes.
        leak: forget nothing but what is removed.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        *,
        idle_expiry_s: float,
        finished_kept: int = FINISHED_KEPT,
        leak: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._idle_expiry_s = idle_expiry_s
        self._finished_kept = finished_kept
        self._leak = leak
        self._clock = clock
        self._live: OrderedDict[str, Episode] = OrderedDict()
        self._finished: OrderedDict[str, Episode] = OrderedDict()

    def add(self, episode: Episode) -> None:
        """Remember a new episode."""
        self._expire()
        episode.touched = self._clock()
        self._live[episode.episode_id] = episode

    def find(self, episode_id: str) -> Episode | None:
        """Return the episode with this id and keep it alive; None where there is none."""
        self._expire()
        for table in (self._live, self._finished):
            episode = table.get(episode_id)
            if episode is not None:
                episode.touched = self._clock()
                table.move_to_end(episode_id)
                return episode
        return None

    def finish(self, episode: Episode) -> None:
        """Let go of the game of an episode that is over."""
        if self._live.pop(episode.episode_id, None) is None:
            return
        self._finished[episode.episode_id] = episode
        if self._leak:
            return
        episode.session = None
        while len(self._finished) > self._finished_kept:
            self._finished.popitem(last=False)

    def remove(self, episode_id: str) -> bool:
        """Forget an episode; whether there was one."""
        self._expire()
        for table in (self._live, self._finished):
            if table.pop(episode_id, None) is not None:
                return True
        return False

    def clear(self) -> None:
        """Forget everything, as a restarted server has."""
        self._live.clear()
        self._finished.clear()

    def _expire(self) -> None:
        if self._leak:
            return
        oldest = self._clock() - self._idle_expiry_s
        for table in (self._live, self._finished):
            while table:
                episode_id, episode = next(iter(table.items()))
                if episode.touched > oldest:
                    break
                del table[episode_id]
