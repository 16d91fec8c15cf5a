"""One episode, whoever plays it: show, answer, step, until the environment says done.

Training, evaluation and the probe all play here. What answers is a `Player`; what becomes of
trouble is the caller's rule.

Invariants:
* an episode ends with its graded score or raises a typed error; trouble never becomes a score;
* the player is closed in every case; the environment belongs to the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from miner.environments.base import (
    Environment,
    EpisodeTask,
    Message,
    Observation,
    Transition,
)
from miner.environments.errors import ProtocolError


class Player(Protocol):
    """What answers in one episode: `begin`, then `reply` and `told` in turn, then `close`."""

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        """The episode has begun and shows what is to be answered first."""
        ...

    async def reply(self) -> str:
        """The text of the next reply. What it raises ends the episode."""
        ...

    def told(self, transition: Transition) -> None:
        """What the latest reply has led to; the episode's last one included."""
        ...

    async def close(self) -> None:
        """The episode is over, in whatever way (idempotent, never raises)."""
        ...


async def play(environment: Environment, task: EpisodeTask, player: Player) -> float:
    """Play `task` to its end.

    Returns: the graded score in [0, 1].
    Raises: `EnvironmentFault`, and what the player raises.
    """
    try:
        observation = await environment.reset(task)
        _check_messages(observation.messages, environment)
        player.begin(task, observation)
        while True:
            reply = await player.reply()
            transition = await environment.step(reply)
            score = _checked_score(transition, environment)
            player.told(transition)
            if score is not None:
                return score
    finally:
        await player.close()


Answer = Callable[[Observation], Awaitable[str]]
"""Answers the whole chat so far, at the end of one of its `stop` at the latest; a last message of
the assistant is to be continued. Where the chat offers tools, the answer has its special tokens."""


class ChatPlayer:
    """`Player` that keeps the chat as the grader would send it.

    Args:
        answer: answers it each turn; used in one episode only.
        ended: forgets the episode.

    Attributes:
        on_turn: called with each reply and its transition, as soon as that is known.
        shown: what has come since the reply before the latest one, as one text a message.
    """

    def __init__(self, answer: Answer, ended: Callable[[], Awaitable[None]] | None = None) -> None:
        self.answer = answer
        self.on_turn: Callable[[str, Transition], None] = lambda reply, transition: None
        self.shown: tuple[str, ...] = ()
        self._ended = ended
        self._chat = Observation(())
        self._reply = ""

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        self._chat = observation
        self.shown = tuple(message["content"] for message in observation.messages)

    async def reply(self) -> str:
        self._reply = await self.answer(self._chat)
        return self._reply

    def told(self, transition: Transition) -> None:
        self.on_turn(self._reply, transition)
        self._chat = replace(
            self._chat,
            messages=continued(self._chat.messages, self._reply, transition),
            tools=transition.tools if transition.fresh else self._chat.tools,
        )
        told = [message["content"] for message in transition.messages]
        self.shown = (transition.appended,) if transition.appended else tuple(told)

    async def close(self) -> None:
        if self._ended:
            await self._ended()


def continued(chat: Sequence[Message], reply: str, transition: Transition) -> tuple[Message, ...]:
    """The chat after a reply to `chat`, as the history shows it.

    Where the assistant's message goes on, it stays the last one.
    """
    if transition.fresh:
        return transition.messages
    said = reply if transition.recorded is None else transition.recorded
    begun = chat[-1]["content"] if chat[-1]["role"] == "assistant" else ""
    before = chat[:-1] if begun else chat
    whole: Message = {"role": "assistant", "content": begun + said + transition.appended}
    return (*before, whole, *transition.messages)


def _check_messages(messages: Sequence[Message], environment: Environment) -> None:
    if not messages:
        raise ProtocolError(
            f"{environment.server} went on with the episode but showed no messages to answer",
            server=environment.server,
        )


def _checked_score(transition: Transition, environment: Environment) -> float | None:
    """The score of a final transition, None for any other one."""
    score = transition.score
    if not transition.done:
        if not transition.appended:
            _check_messages(transition.messages, environment)
        return None
    if score is None or not 0.0 <= score <= 1.0:
        raise ProtocolError(
            f"{environment.server} ended the episode with score {score!r}, expected 0..1",
            server=environment.server,
        )
    return score
