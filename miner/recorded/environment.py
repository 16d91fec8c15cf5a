"""Held-out conversations as episodes: the policy replies at some places, the record continues.

Invariant: only the form of the policy's replies counts; each prompt is the recorded past.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from miner.duel.calls import parse_calls
from miner.duel.tools import offered_tools
from miner.environments.base import EpisodeTask, InProcess, Message, Observation, Transition
from miner.environments.errors import ProtocolError, no_episode
from miner.recorded.conversations import Conversation, Conversations
from miner.recorded.swe_form import fault

NAME = "recorded"


class RecordedTasks:
    """`TaskStream` of conversations by their numbers. What is trained needs no task: it is read."""

    name = NAME

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    def training(self, index: int, seed: int) -> EpisodeTask:
        """A placeholder for the `index`-th one of a run."""
        return EpisodeTask(NAME, task_id=index, seed=seed, opponent="none")

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        held_out = self._conversations.held_out
        numbers = random.Random(base_seed).sample(held_out, min(count, len(held_out)))
        return [EpisodeTask(NAME, number, number, "none") for number in numbers]


class RecordedSource(InProcess):
    """Opens conversations for a model.

    Args:
        family: of its calls, one of `calls.FORMS`.
    """

    name = NAME

    def __init__(self, conversations: Conversations, family: str) -> None:
        self.conversations = conversations
        self.family = family

    def open(self, avoid: Collection[str] = ()) -> RecordedEnvironment:
        """A fresh environment; `avoid` cannot apply where there are no servers."""
        return RecordedEnvironment(self.conversations, self.family)


class RecordedEnvironment:
    """The first, the middle and the last reply of one conversation.

    One that is not of the form ends the episode with score 0; else the score is 1.
    """

    server = NAME

    def __init__(self, conversations: Conversations, family: str) -> None:
        self._conversations = conversations
        self._family = family
        self._asked: list[int] = []

    async def reset(self, task: EpisodeTask) -> Observation:
        self._conversation = self._conversations.every[task.task_id]
        replies = self._conversation.replies
        self._asked = sorted({replies[0], replies[len(replies) // 2], replies[-1]})
        try:
            self._messages = self._conversation.written(self._family)
        except ValueError as error:
            raise ProtocolError(f"conversation {task.task_id}: {error}", server=NAME) from error
        return Observation(self._shown(), tools=self._conversation.tools)

    async def step(self, text: str) -> Transition:
        if not self._asked:
            raise no_episode(NAME)
        found = form_fault(self._conversation, self._asked.pop(0), text, self._family)
        if found or not self._asked:
            self._asked = []
            score = float(not found)
            return Transition((), score, True, score=score, valid=not found, fault=found)
        return Transition(
            self._shown(), 0.0, done=False, fresh=True, tools=self._conversation.tools
        )

    async def close(self) -> None:
        self._asked = []

    def _shown(self) -> tuple[Message, ...]:
        return self._messages[: self._asked[0]]


def form_fault(conversation: Conversation, at: int, text: str, family: str) -> str:
    """Return why `text` has not the form of the reply at this place, in a few words; empty if it
    has: a block of bash in software tasks, a call of a tool that is offered where the record has
    one."""
    if conversation.software:
        return fault(text)
    if at in conversation.calls and not parse_calls(
        family, text, offered_tools(conversation.tools)
    ):
        return "no tool call"
    return ""
