"""Echo, an OpenEnv server that rewards long replies: the whole of it, as one would write it.

Served by `miner train environment.channel=openenv environment.openenv.app=examples/openenv/echo.py`
or by hand, `.venv-openenv/bin/python -m uvicorn --app-dir examples/openenv echo:app --port 8100`.
"""

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_app

BEST_LENGTH = 32


class EchoAction(Action):
    """Text to repeat."""

    message: str


class EchoObservation(Observation):
    """The repeated text."""

    echo: str


class EchoEnvironment(Environment):
    """Repeats a text; the reward is the length of that, 1.0 from `BEST_LENGTH` on."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Begin; there is no chance in it, so that the seed changes nothing."""
        self._state = State(episode_id=episode_id)
        return EchoObservation(echo="Say something.")

    def step(
        self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any
    ) -> EchoObservation:
        """Echo, and reward by length."""
        self._state.step_count += 1
        reward = min(1.0, len(action.message) / BEST_LENGTH)
        return EchoObservation(echo=action.message, reward=reward, done=False)

    @property
    def state(self) -> State:
        """Progress of the episode."""
        return self._state


app = create_app(
    EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=256
)
