"""A game of OpenSpiel as an OpenEnv server, against an opponent that plays at random.

By hand, `GAME=connect_four` before
`.venv-openenv/bin/python -m uvicorn --app-dir examples/openenv open_spiel:app --port 8100`.

Actions and observations are those of OpenEnv's own OpenSpiel server, which is on no registry, and a
picture of the board besides. Unlike there, the seed decides about everything that is chance.
"""

import os
import random
from typing import Any

import pyspiel
from openenv.core.env_server import Action, Environment, Observation, State, create_app

GAME = os.environ.get("GAME", "tic_tac_toe")


class OpenSpielAction(Action):
    """A move."""

    action_id: int


class OpenSpielObservation(Observation):
    """The board as the player sees it, and what may be played."""

    board: str
    info_state: list[float]
    legal_actions: list[int]
    current_player_id: int


class OpenSpielEnvironment(Environment):
    """One game; the agent is the first player."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._game = pyspiel.load_game(GAME)
        self._chance = random.Random()
        self._position = self._game.new_initial_state()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> OpenSpielObservation:
        """A new game."""
        self._state = State(episode_id=episode_id)
        self._chance = random.Random(seed)
        self._position = self._game.new_initial_state()
        self._play_others()
        return self._seen()

    def step(
        self, action: OpenSpielAction, timeout_s: float | None = None, **kwargs: Any
    ) -> OpenSpielObservation:
        """The agent's move and what answers it."""
        if action.action_id not in self._position.legal_actions():
            raise ValueError(f"{action.action_id} is not a legal action")
        self._state.step_count += 1
        self._position.apply_action(action.action_id)
        self._play_others()
        return self._seen()

    @property
    def state(self) -> State:
        """Progress of the game."""
        return self._state

    def _play_others(self) -> None:
        """Chance and the opponent, until it is the agent's turn or the end."""
        position = self._position
        while not position.is_terminal() and position.current_player() != 0:
            if position.is_chance_node():
                actions, weights = zip(*position.chance_outcomes(), strict=True)
                position.apply_action(self._chance.choices(actions, weights)[0])
            else:
                position.apply_action(self._chance.choice(position.legal_actions()))

    def _seen(self) -> OpenSpielObservation:
        position, over = self._position, self._position.is_terminal()
        return OpenSpielObservation(
            board=position.observation_string(0),
            info_state=position.observation_tensor(0),
            legal_actions=[] if over else position.legal_actions(),
            current_player_id=position.current_player(),
            reward=position.returns()[0] if over else 0.0,
            done=over,
        )


app = create_app(
    OpenSpielEnvironment,
    OpenSpielAction,
    OpenSpielObservation,
    env_name=f"openspiel-{GAME}",
    max_concurrent_envs=256,
)
