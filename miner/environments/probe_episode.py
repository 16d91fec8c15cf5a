"""One episode as the probe plays it on any channel, kept whole for comparison."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from miner.environments.base import Environment, EpisodeTask, Message
from miner.environments.errors import InfrastructureError
from miner.environments.games import clean_reply
from miner.environments.listing import parse_listing

TRIES: Final = 5
"""How often the probe asks: where 30% of the answers fail, all five do once in 400 times."""


@dataclass(slots=True)
class ProbeEpisode:
    """A graded episode: the replies it begins with, and how its latest play went."""

    task: EpisodeTask
    planned: tuple[str, ...] = ()
    replies: list[str] = field(default_factory=list)
    conversation: list[Message] = field(default_factory=list)
    score: float | None = None


async def play(environment: Environment, episode: ProbeEpisode) -> None:
    """Play `episode` to its end: its planned replies, then legal ids drawn with its seed."""
    rng = random.Random(episode.task.seed)
    planned = iter(episode.planned)
    episode.replies, episode.conversation, episode.score = [], [], None
    legal: list[int] = []
    try:
        observation = await environment.reset(episode.task)
        messages = observation.messages
        while True:
            episode.conversation.extend(messages)
            legal = list(parse_listing(messages[-1]["content"])) or legal
            reply = next(planned, "") or str(rng.choice(legal))
            episode.replies.append(reply)
            episode.conversation.append({"role": "assistant", "content": clean_reply(reply)})
            transition = await environment.step(reply)
            if transition.done:
                episode.score = transition.score
                return
            messages = transition.messages
    finally:
        await environment.close()


async def play_with_tries(
    open_environment: Callable[[], Environment],
    episode: ProbeEpisode,
    on_failure: Callable[[InfrastructureError], None],
) -> None:
    """`play` anew after each failure of infrastructure, `TRIES` times at most.

    Args:
        on_failure: told of each of them, the last one included.

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
    """The first difference between two plays of a task, empty if there is none."""
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
