"""An environment for tests, served by the real OpenEnv package: the reply says what happens."""

import os
import random
import signal
from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app

SESSIONS = 4
REWARDS = {"nan": float("nan"), "infinite": float("inf"), "none": None, "true": True}


class Word(Action):
    """A reply."""

    word: str


class Said(Observation):
    """An answer."""

    text: str


class Talk(Environment):
    """Three turns; each gives a tenth, unless the reply says otherwise."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Said:
        self._state = State()
        return Said(text=f"game {random.Random(seed).randrange(1000)}")

    def step(self, action: Word, timeout_s: float | None = None, **_: Any) -> Said:
        self._state.step_count += 1
        if action.word == "raise":
            raise RuntimeError("as you say")
        if action.word == "misspell":
            Said(txet="")
        if action.word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        reward = REWARDS.get(action.word, 0.1)
        done = self._state.step_count == 3 or action.word in REWARDS
        text = "x" * (5 << 20) if action.word == "big" else f"heard {action.word}"
        return Said(text=text, reward=reward, done=done)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Talk, Word, Said, env_name="talk", max_concurrent_envs=SESSIONS)
