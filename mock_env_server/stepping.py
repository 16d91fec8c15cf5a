"""The training API: /reset, /step, /state and /stop.

Invariants:
* an answer is HTTP 200 for every end of an episode; only unusable arguments raise
  `BadArguments`, which the real server answers with 500;
* an action that cannot be read changes nothing: no move, no random number is drawn;
* no more than `KEPT` episodes are remembered, those of the latest starts (the real server forgets
  none).
"""

import re
import sys
from collections import OrderedDict
from typing import Any

from miner.environments.games import CHANCE, GameSession, parse_step_action
from miner.environments.games.session import CardApplication
from mock_env_server import wording
from mock_env_server.episodes import Episode
from mock_env_server.rooms import GameRoom, random_seed, random_task_id
from mock_env_server.settings import ServerSettings

Answer = dict[str, Any]
INVALID_ACTION_REWARD = -0.01
KEPT = 20_000
_NO_INFO = {
    "task_id": None,
    "seed": None,
    "game_name": None,
    "llm_player_id": None,
    "opponent_type": None,
    "step_count": 0,
    "cumulative_reward": 0.0,
}


class BadArguments(Exception):
    """Arguments that the real server answers with HTTP 500."""


class SteppedGames:
    """Plays the episodes of the training API."""

    def __init__(self, settings: ServerSettings, room: GameRoom) -> None:
        self._room = room
        self._card_application: CardApplication = (
            "faulty" if settings.mode == "faithful" else "asked"
        )
        self.episodes: OrderedDict[str, Episode] = OrderedDict()

    async def reset(self, task_id: Any = None, seed: Any = None, opponent: Any = "mcts") -> Answer:
        """Start an episode. What is missing is drawn at random, the game too."""
        task_id = random_task_id() if task_id is None else _whole_number(task_id)
        seed = random_seed() if seed is None else seed
        if not isinstance(seed, int):
            raise BadArguments(f"seed {seed!r}: expected a whole number")
        try:
            session = await self._room.open(
                task_id,
                int(seed),
                opponent,
                stream="train",
                card_application=self._card_application,
            )
        except ValueError as error:
            raise BadArguments(f"seed {seed}, task_id {task_id}: {error}") from error
        episode = Episode(
            session,
            {
                "task_id": task_id,
                "seed": seed,
                "game_name": session.game_name,
                "llm_player_id": session.agent_seat,
                "opponent_type": opponent,
            },
        )
        self.episodes[episode.episode_id] = episode
        if len(self.episodes) > KEPT:
            self.episodes.popitem(last=False)
        self._look(episode, session)
        rules = session.game.rules
        return _answer(episode, observation=wording.first_observation(rules, episode.observation))

    async def step(self, action: Any, episode_id: Any = None) -> Answer:
        """Play the first number in `action`."""
        episode = self._find(episode_id)
        if not isinstance(episode, Episode):
            return episode
        session = episode.session
        if episode.done or session is None:
            return _answer(episode, error=("episode_done", wording.EPISODE_OVER))
        chosen = _read_action(action)
        if episode.thinking:
            return _answer(episode, error=("not_your_turn", wording.STILL_THINKING))
        if chosen is None or chosen not in session.legal_actions():
            choices = _choices(session)
            return _answer(
                episode,
                observation=wording.invalid_action(action, choices),
                reward=INVALID_ACTION_REWARD,
                error=("invalid_action", wording.UNREADABLE_ACTION),
            )
        episode.thinking = True
        try:
            await self._room.play(session, chosen)
        finally:
            episode.thinking = False
        self._look(episode, session)
        return _answer(episode, reward=episode.total_reward)

    async def state(self, episode_id: Any = None) -> Answer:
        """State of an episode."""
        episode = self._find(episode_id)
        return _answer(episode) if isinstance(episode, Episode) else episode

    async def stop(self, episode_id: Any = None) -> Answer:
        """Forget an episode."""
        if not episode_id:
            return {"status": "ok", "stopped": False, "message": wording.NO_EPISODE}
        if self.episodes.pop(_hashable(episode_id), None):
            return {"status": "ok", "stopped": True, "episode_id": episode_id}
        return {"status": "ok", "stopped": False, "message": wording.not_found(episode_id)}

    def _find(self, episode_id: Any) -> Episode | Answer:
        """Return the episode, or the answer with the reason why there is none."""
        if not episode_id:
            return _lost(None, "no_episode_id", wording.NO_EPISODE)
        episode = self.episodes.get(_hashable(episode_id))
        if episode is None:
            return _lost(episode_id, "episode_not_found", wording.unknown_episode(episode_id))
        return episode

    def _look(self, episode: Episode, session: GameSession) -> None:
        """Update the stored fields of an episode from its game."""
        episode.last_opponent_action = session.last_opponent_action()
        moves = sum(move.player != CHANCE for move in session.history[episode.events_seen :])
        episode.steps += moves // 2 if session.simultaneous else moves
        episode.events_seen = len(session.history)
        if not session.done:
            episode.observation = _observation(session)
            return
        episode.total_reward = session.score()
        episode.observation = wording.game_over(
            session.game_name, session.agent_seat, session.returns(), episode.total_reward
        )
        episode.done = True
        episode.session = None


def _answer(
    episode: Episode,
    *,
    observation: str | None = None,
    reward: float = 0.0,
    error: tuple[str, str] | None = None,
) -> Answer:
    info = episode.info()
    if error is not None:
        info["error"] = {"type": error[0], "message": error[1], "retryable": True}
    return {
        "observation": episode.observation if observation is None else observation,
        "reward": reward,
        "done": episode.done,
        "truncated": False,
        "episode_id": episode.episode_id,
        "info": info,
    }


def _lost(episode_id: object, kind: str, message: str) -> Answer:
    error = {"type": kind, "message": message, "retryable": True}
    return {
        "observation": message,
        "reward": 0.0,
        "done": True,
        "truncated": True,
        "episode_id": episode_id,
        "info": _NO_INFO | {"error": error},
    }


def _whole_number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadArguments(f"task_id {value!r}: expected a whole number ({error})") from error


def _hashable(episode_id: Any) -> Any:
    if isinstance(episode_id, list | dict):
        raise BadArguments(f"episode_id {episode_id!r}: expected the string that /reset gave")
    return episode_id


def _read_action(action: Any) -> int | None:
    if not isinstance(action, str):
        raise BadArguments(f"action {action!r}: expected a string such as '3'")
    limit = sys.get_int_max_str_digits()
    if len(action) > limit:
        first = re.search(r"\d+", action)
        if first and len(first[0]) > limit:
            raise BadArguments(f"action with a number of {len(first[0])} digits: at most {limit}")
    return parse_step_action(action)


def _choices(session: GameSession) -> list[tuple[int, str]]:
    return [(action, session.label(action)) for action in session.legal_actions()]


def _observation(session: GameSession) -> str:
    menu = wording.SIMULTANEOUS_MENU if session.simultaneous else wording.menu(_choices(session))
    return wording.observation(session.game_name, session.agent_seat, session.state_text(), menu)
