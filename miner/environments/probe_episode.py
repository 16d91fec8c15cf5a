"""One episode as the probe plays it on any channel, kept whole for comparison."""

from __future__ import annotations

import random
from dataclasses import dataclass

from miner.environments.base import Environment, EpisodeTask, Message
from miner.environments.games import clean_reply
from miner.environments.listing import parse_listing


@dataclass(slots=True)
class ProbeEpisode:
    """A graded episode as it went."""

    task: EpisodeTask
    replies: list[str]
    conversation: list[Message]
    score: float | None = None


async def play(environment: Environment, episode: ProbeEpisode) -> None:
    """Play `episode` to its end: its replies first, then legal ids drawn with its seed."""
    rng = random.Random(episode.task.seed)
    planned = iter(list(episode.replies))
    episode.replies.clear()
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
