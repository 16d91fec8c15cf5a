"""The in-process channel: OpenSpiel games with the grader's dialogue, without a server.

Invariants: prompts, retries, parser and game rules are the grader's; equal tasks have equal
prizes, cards, dice and opponent randomness (the server's evaluation streams).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from miner.environments.base import EpisodeTask, InProcess, Observation, Transition
from miner.environments.errors import no_episode
from miner.environments.games import (
    GameSession,
    GradedDialogue,
    PromptFormat,
    clean_reply,
)

NAME = "builtin"

_T = TypeVar("_T")


class BuiltinEnvironment:
    """One episode at a time, in this process."""

    server = NAME

    def __init__(self, prompt_formats: Mapping[str, PromptFormat]) -> None:
        self._formats = prompt_formats
        self._session: GameSession | None = None
        self._dialogue: GradedDialogue | None = None

    async def reset(self, task: EpisodeTask) -> Observation:
        """Start `task`."""
        session = await _play(
            task.opponent, lambda: GameSession(task.task_id, task.seed, opponent=task.opponent)
        )
        name = session.game_name
        self._session = session
        self._dialogue = GradedDialogue(self._formats.get(name) or PromptFormat.own(name))
        return Observation(self._dialogue.ask(session.turn()))

    async def step(self, text: str) -> Transition:
        """Answer with the policy's whole reply. Raises: `ProtocolError` when no episode is open."""
        session, dialogue = self._session, self._dialogue
        if session is None or dialogue is None:
            raise no_episode(NAME)
        verdict = dialogue.reply(text)
        if verdict.failed:
            await self.close()
            return Transition((), 0.0, done=True, score=0.0, valid=False)
        action = verdict.action
        if action is None:
            return Transition(
                verdict.messages, 0.0, done=False, valid=False, recorded=clean_reply(text)
            )
        await _play(session.opponent, lambda: session.play(action))
        if session.done:
            await self.close()
            score = session.score()
            return Transition((), score, done=True, score=score, action=action)
        messages = dialogue.ask(session.turn())
        return Transition(messages, 0.0, done=False, action=action, recorded=clean_reply(text))

    async def close(self) -> None:
        """Drop the episode."""
        self._session = None
        self._dialogue = None


async def _play(opponent: str, move: Callable[[], _T]) -> _T:
    """Run a part of a game, beside the event loop if the opponent thinks before it moves."""
    return move() if opponent == "random" else await asyncio.to_thread(move)


class BuiltinSource(InProcess):
    """Opens in-process environments.

    Args:
        prompt_formats: wording of a live server's prompts, by game; games without one are worded
            by `PromptFormat.own`.
    """

    name = NAME

    def __init__(self, prompt_formats: Mapping[str, PromptFormat] | None = None) -> None:
        self._formats = dict(prompt_formats or {})

    def open(self, avoid: Collection[str] = ()) -> BuiltinEnvironment:
        """A fresh environment; `avoid` cannot apply to a channel without servers."""
        return BuiltinEnvironment(self._formats)
