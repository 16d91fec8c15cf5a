"""An OpenEnv server for `benchmarks.openenv`: episodes of very different length, slow to step.

Run by `.venv-openenv`'s Python, through `environment.openenv.app`.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app

MEAN_TURNS, MOST_TURNS = 8, 40
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.01"))


class Say(Action):
    """Anything."""

    message: str


class Heard(Observation):
    """That it was heard."""

    text: str


class Talk(Environment):
    """The seed decides how many turns there are, and that is what it says."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._turns = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Heard:
        """Draw the number of turns."""
        drawn = round(random.Random(seed).expovariate(1 / MEAN_TURNS))
        self._turns = min(MOST_TURNS, max(1, drawn))
        self._state = State(episode_id=episode_id)
        return Heard(text=f"Task {seed}: {self._turns} turns.")

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        """Take its time, as a tool would."""
        time.sleep(STEP_SECONDS)
        self._state.step_count += 1
        done = self._state.step_count == self._turns
        return Heard(text="go on", reward=float(done), done=done)

    @property
    def state(self) -> State:
        """How far the episode is."""
        return self._state


app = create_app(Talk, Say, Heard, env_name="talk", max_concurrent_envs=256)
