"""Episodes of a custom class, behind the protocol that all environments share.

Invariants:
* a score leaves as a number in [0, 1]; anything else, and any error of the class once it was given
  a reply, is a `ProtocolError`, so that no reward is made up, and replies that make it raise gain
  nothing; an `InfrastructureError` that the class raises stays one;
* an episode has `max_turns` replies at most, and each method `seconds`; one that its replies, and
  the answers to them, make too long scores 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from miner.encodable import encodable
from miner.environments.base import EpisodeTask, InProcess, Message, Observation, Transition
from miner.environments.errors import (
    EnvironmentFault,
    InfrastructureError,
    ProtocolError,
    no_episode,
)
from miner.environments.own.entry import number_of, with_place
from miner.environments.own.text_environment import Step, TextEnvironment
from miner.environments.own.worker import OverdueError, Worker

NAME = "own"
FIELDS = (
    ("text", str, "a text, as in Step('higher'); the end is Step(score=1.0)"),
    ("valid", bool | np.bool_, "True or False"),
)
"""Of a `Step`: name, type, and expectation in words."""


class OwnSource(InProcess):
    """Opens environments, each with an object of the class to itself."""

    name = NAME
    capacity = 1024

    def __init__(self, kind: type[TextEnvironment]) -> None:
        self._kind = kind
        self._worker = Worker(kind, kind.seconds)

    def open(self, avoid: Collection[str] = ()) -> OwnEnvironment:
        """A fresh environment; `avoid` cannot apply where there are no servers."""
        return OwnEnvironment(self._kind, self._worker)

    async def close(self) -> None:
        """Let the thread of the class end."""
        self._worker.close()


class OwnEnvironment:
    """One episode at a time."""

    def __init__(self, kind: type[TextEnvironment], worker: Worker) -> None:
        self._kind = kind
        self._worker = worker
        self._inner: TextEnvironment | None = None
        self._played: tuple[object, ...] = ()
        self._open = False

    @property
    def server(self) -> str:
        """The class that plays."""
        return self._kind.__name__

    async def reset(self, task: EpisodeTask) -> Observation:
        """Begin `task`. Raises: `InfrastructureError`, `ProtocolError`."""
        self._played, self._open = (task.seed,), True
        if self._inner is None:  # made on the thread that plays it
            self._inner = await self._called(self._kind)
        assert self._inner is not None
        text = await self._called(self._inner.reset, task.seed)
        if not isinstance(text, str) or not text:
            raise self._fault(f"reset({task.seed}) returned {text!r}: expected a text to answer")
        asked: list[Message] = [{"role": "user", "content": encodable(text)}]
        if self._kind.system:
            asked.insert(0, {"role": "system", "content": encodable(self._kind.system)})
        return Observation(tuple(asked), stop=tuple(self._kind.stop), too_long_forfeits=True)

    async def step(self, text: str) -> Transition:
        """Hand on the policy's reply. Raises: `InfrastructureError`, `ProtocolError`."""
        if not self._open or self._inner is None:
            raise no_episode(NAME)
        self._played += (text,)
        step = await self._called(self._inner.step, text)
        if not isinstance(step, Step):
            raise self._fault(f"step({text[:80]!r}) returned {step!r}: expected a Step")
        for name, kinds, expected in FIELDS:
            if not isinstance(value := getattr(step, name), kinds):
                raise self._fault(
                    f"step({text[:80]!r}) returned a Step whose {name} is {repr(value)[:80]}: "
                    f"expected {expected}"
                )
        if (step.score is None) != bool(step.text):
            raise self._fault(
                f"step({text[:80]!r}) returned {step!r}: a Step has either a text, with which the "
                "episode continues, or a score, with which it is over"
            )
        if step.score is None and len(self._played) <= self._kind.max_turns:
            asked: Message = {"role": "user", "content": encodable(step.text)}
            return Transition((asked,), 0.0, done=False, valid=step.valid)
        raw = step.score
        if raw is None:
            raw = await self._called(self._inner.score)
        self._open = False
        score = self._mapped(raw)
        return Transition((), score, done=True, score=score, valid=step.valid)

    async def close(self) -> None:
        """Drop the episode."""
        self._open = False

    def _mapped(self, score: Any) -> float:
        low, high = self._kind.score_range
        number = number_of(score)
        if number is None or not low <= number <= high:
            raise self._fault(
                f"the score is {score!r}, but score_range is {low:g} to {high:g}: correct the "
                "score, or the range"
            )
        return (number - low) / (high - low)

    async def _called(self, method: Callable[..., Any], *given: object) -> Any:
        try:
            return await self._worker.call(method, *given, played=self._played)
        except EnvironmentFault:
            raise
        except OverdueError as error:
            self._open = False
            raise InfrastructureError(
                f"{error} (the limit is {self._kind.__name__}.seconds)", server=self.server
            ) from None
        except Exception as error:
            shown = ", ".join(repr(each)[:80] for each in given)
            raise self._fault(f"{method.__name__}({shown}) raised {with_place(error)}") from error

    def _fault(self, what: str) -> EnvironmentFault:
        """Before the first reply no policy has caused it."""
        self._open = False
        kind = ProtocolError if len(self._played) > 1 else InfrastructureError
        return kind(f"{self._kind.__name__}: {what}", server=self.server)
