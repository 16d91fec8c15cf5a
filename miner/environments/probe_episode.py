"""One episode as the probe plays it on any channel, kept whole for comparison."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from miner.environments import playing
from miner.environments.base import (
    Environment,
    EpisodeTask,
    Message,
    Observation,
    Transition,
)
from miner.environments.errors import InfrastructureError
from miner.environments.games import clean_reply
from miner.environments.listing import parse_listing

TRIES: Final = 5
"""Tries of the probe: where 30% of the answers fail, all five do once in 400 times."""


@dataclass(slots=True)
class ProbeEpisode:
    """A graded episode: the replies it begins with, and how its latest play went."""

    task: EpisodeTask
    planned: tuple[str, ...] = ()
    replies: list[str] = field(default_factory=list)
    conversation: list[Message] = field(default_factory=list)
    score: float | None = None


class Prober:
    """`Conversation` of an episode's planned replies, then of legal ids drawn with its seed; both
    sides are recorded in the episode."""

    def __init__(self, episode: ProbeEpisode) -> None:
        self._episode = episode
        self._rng = random.Random(episode.task.seed)
        self._planned = iter(episode.planned)
        self._legal: list[int] = []
        episode.replies, episode.conversation, episode.score = [], [], None

    def begin(self, task: EpisodeTask, observation: Observation) -> None:
        self._episode.conversation.extend(observation.messages)

    async def reply(self) -> str:
        shown = self._episode.conversation[-1]["content"]
        self._legal = list(parse_listing(shown)) or self._legal
        reply = next(self._planned, "") or str(self._rng.choice(self._legal))
        self._episode.replies.append(reply)
        self._episode.conversation.append({"role": "assistant", "content": clean_reply(reply)})
        return reply

    def observe(self, transition: Transition) -> None:
        self._episode.conversation.extend(transition.messages)

    async def close(self) -> None:
        pass


async def play(environment: Environment, episode: ProbeEpisode) -> None:
    """Play `episode` to its end and close the environment. Raises: `EnvironmentFault`."""
    try:
        episode.score = await playing.play(environment, episode.task, Prober(episode))
    finally:
        await environment.close()


async def play_with_tries(
    open_environment: Callable[[], Environment],
    episode: ProbeEpisode,
    on_failure: Callable[[InfrastructureError], None],
) -> None:
    """`play` again after each failure of infrastructure, `TRIES` times at most.

    Args:
        on_failure: called with each of them, the last one included.

    Raises: the last failure, or at once one that is no failure of infrastructure.
    """
    for number in range(TRIES):
        try:
            await play(open_environment(), episode)
        except InfrastructureError as error:
            on_failure(error)
            if number == TRIES - 1:
                raise
        else:
            return
        await asyncio.sleep(pause_s(number))


def pause_s(failures: int) -> float:
    """Seconds to wait after the first failure (0), the second (1), and so on."""
    return min(0.5, 0.1 * 2**failures)


def first_difference(ours: ProbeEpisode, theirs: ProbeEpisode) -> str:
    """The first difference between two plays of a task, empty where they agree."""
    for number, (mine, given) in enumerate(
        zip(ours.conversation, theirs.conversation, strict=False)
    ):
        if mine != given:
            return (
                f"{theirs.task}: message {number} is {given['content'][-300:]!r} on the server "
                f"and {mine['content'][-300:]!r} in-process"
            )
    if len(ours.conversation) != len(theirs.conversation):
        return (
            f"{theirs.task}: {len(theirs.conversation)} messages on the server, "
            f"{len(ours.conversation)} in-process"
        )
    if ours.score != theirs.score:
        return f"{theirs.task}: score {theirs.score} on the server, {ours.score} in-process"
    return ""
