"""A source and policies that do as they are told, to put the runner into every situation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from miner.environments import Environment, EpisodeTask, Message, Observation, Transition
from miner.environments.playing import TextConversation

Event = Transition | Exception | None
"""Result of a step: a transition, a fault, or (None) silence for ever."""


def task(number: int) -> EpisodeTask:
    """A Goofspiel episode; its deck size and seat follow from the number."""
    return EpisodeTask("goofspiel", number, number)


def won(action: int = 0) -> Transition:
    return Transition((), 1.0, done=True, score=1.0, action=action)


def retry(recorded: str | None = None) -> Transition:
    message: Message = {"role": "user", "content": "again"}
    return Transition((message,), 0.0, done=False, valid=False, recorded=recorded)


def gave_up() -> Transition:
    return Transition((), 0.0, done=True, score=0.0, valid=False)


@dataclass
class ScriptedSource:
    """Plays `scripts[task_id]`, one list of events per try; counts what is open."""

    scripts: dict[int, list[list[Event]]] = field(default_factory=dict)
    capacity: int = 100
    name: str = "graded"
    applied_rate: float | None = None
    opened: int = 0
    closed: int = 0
    most_open: int = 0
    avoided: list[set[str]] = field(default_factory=list)

    def open(self, avoid: Collection[str] = ()) -> ScriptedEnvironment:
        self.opened += 1
        self.most_open = max(self.most_open, self.opened - self.closed)
        self.avoided.append(set(avoid))
        return ScriptedEnvironment(self, f"server-{self.opened}")

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        pass

    async def close(self) -> None:
        pass


class ScriptedEnvironment:
    def __init__(self, source: ScriptedSource, server: str) -> None:
        self._source = source
        self.server = server
        self._events: list[Event] = []

    async def reset(self, task: EpisodeTask) -> Observation:
        tries = self._source.scripts.get(task.task_id, [[won()]])
        self._events = list(tries.pop(0) if len(tries) > 1 else tries[0])
        return Observation(({"role": "user", "content": "begin"},))

    async def step(self, text: str) -> Transition:
        await asyncio.sleep(0)
        event = self._events.pop(0)
        if event is None:
            await asyncio.Event().wait()
        if isinstance(event, Exception):
            raise event
        assert isinstance(event, Transition)
        return event

    async def close(self) -> None:
        self._source.closed += 1


@dataclass
class ScriptedPolicy:
    """Says its replies in turn (the last one for ever), or raises them; keeps what it was shown."""

    replies: Sequence[str | Exception] = ("0",)
    name: str = "scripted"
    temperature: float | None = None
    shown: list[list[Message]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    def conversation(self, task: EpisodeTask) -> TextConversation:
        self.opened += 1
        replies = chain(self.replies, repeat(self.replies[-1]))

        async def reply(chat: Observation) -> str:
            self.shown.append(list(chat.messages))
            said = next(replies)
            if isinstance(said, Exception):
                raise said
            return said

        async def ended() -> None:
            self.closed += 1

        return TextConversation(reply, ended)

    async def close(self) -> None:
        pass
