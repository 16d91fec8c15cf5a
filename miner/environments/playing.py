"""The turn loop of an episode: show, reply, step, until the environment is done.

Training, evaluation and the probe all play here; a `Conversation` replies. How a failure counts is
the caller's rule.

Invariants:
* an episode ends with its graded score or raises a typed error; trouble never becomes a score;
* the conversation is closed in every case; the environment belongs to the caller.
"""

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


class Conversation(Protocol):
    """The replying side of one episode: `begin`, then `reply` and `observe` in turn, then `close`.

    A `miner.duel.players.base.Player`, in contrast, answers requests of many duels at once.
    """

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        """Take the messages to be answered first."""

    async def reply(self) -> str:
        """Return the next reply. What it raises ends the episode."""

    def observe(self, transition: Transition) -> None:
        """Take the result of the latest reply, also of the episode's last one."""

    async def close(self) -> None:
        """Release what the episode held (idempotent, never raises)."""


async def play(environment: Environment, task: EpisodeTask, conversation: Conversation) -> float:
    """Play `task` to its end.

    Returns: the graded score in [0, 1].
    Raises: `EnvironmentFault`, and what the conversation raises.
    """
    try:
        observation = await environment.reset(task)
        _check_messages(observation.messages, environment)
        conversation.begin(task, observation)
        while True:
            reply = await conversation.reply()
            transition = await environment.step(reply)
            score = _checked_score(transition, environment)
            conversation.observe(transition)
            if score is not None:
                return score
    finally:
        await conversation.close()


Answer = Callable[[Observation], Awaitable[str]]
"""Answers the whole chat so far, at the end of one of its `stop` at the latest; a last message of
the assistant is to be continued. Where the chat offers tools, the answer has its special tokens."""


class TextConversation:
    """`Conversation` that keeps the chat as the grader would send it.

    Args:
        answer: answers it each turn; used in one episode only.
        ended: forgets the episode.

    Attributes:
        on_turn: called with each reply and its transition, as soon as that is known.
        shown: messages since the reply before the latest one, as one text each.
        cut: true if a limit of tokens ended the latest reply; set by what answers.
    """

    def __init__(self, answer: Answer, ended: Callable[[], Awaitable[None]] | None = None) -> None:
        self.answer = answer
        self.on_turn: Callable[[str, Transition], None] = lambda reply, transition: None
        self.shown: tuple[str, ...] = ()
        self.cut = False
        self._ended = ended
        self._chat = Observation(())
        self._reply = ""

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        self._chat = observation
        self.shown = tuple(message["content"] for message in observation.messages)

    async def reply(self) -> str:
        self._reply = await self.answer(self._chat)
        return self._reply

    def observe(self, transition: Transition) -> None:
        self.on_turn(self._reply, transition)
        self._chat = replace(
            self._chat,
            messages=continued(self._chat.messages, self._reply, transition),
            tools=transition.tools if transition.fresh else self._chat.tools,
        )
        shown = [message["content"] for message in transition.messages]
        self.shown = (transition.appended,) if transition.appended else tuple(shown)

    async def close(self) -> None:
        if self._ended:
            await self._ended()


def continued(chat: Sequence[Message], reply: str, transition: Transition) -> tuple[Message, ...]:
    """The chat after a reply to `chat`, as the history shows it.

    An assistant's message that is continued stays the last one.
    """
    if transition.fresh:
        return transition.messages
    recorded = reply if transition.recorded is None else transition.recorded
    begun = chat[-1]["content"] if chat[-1]["role"] == "assistant" else ""
    before = chat[:-1] if begun else chat
    whole: Message = {"role": "assistant", "content": begun + recorded + transition.appended}
    return (*before, whole, *transition.messages)


def _check_messages(messages: Sequence[Message], environment: Environment) -> None:
    if not messages:
        raise ProtocolError(
            f"{environment.server} continued the episode but showed no messages to answer",
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
