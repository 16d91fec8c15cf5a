"""Playing whole episodes through the `Environment` protocol, as the tests of all channels do."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from miner.environments import Environment, EnvironmentSource, EpisodeTask, Message, Transition
from miner.environments.listing import parse_listing

Policy = Callable[[Sequence[int]], str]


@dataclass
class Played:
    """Messages that the policy saw, and the result."""

    shown: list[tuple[Message, ...]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)

    @property
    def score(self) -> float | None:
        return self.transitions[-1].score


async def play(environment: Environment, task: EpisodeTask, policy: Policy) -> Played:
    """Play `task` to its end; `policy` gets the legal ids of the turn. Closes the environment."""
    played = Played()
    legal: Sequence[int] = ()
    try:
        messages = (await environment.reset(task)).messages
        while True:
            played.shown.append(messages)
            legal = tuple(parse_listing(messages[-1]["content"])) or legal
            played.replies.append(policy(legal))
            transition = await environment.step(played.replies[-1])
            played.transitions.append(transition)
            if transition.done:
                return played
            messages = transition.messages
    finally:
        await environment.close()


async def play_on(source: EnvironmentSource, task: EpisodeTask, policy: Policy) -> Played:
    """Play `task` in a fresh environment of `source`."""
    return await play(source.open(), task, policy)


def lowest(legal: Sequence[int]) -> str:
    return str(legal[0])


def drawn(seed: int) -> Policy:
    """Legal ids drawn with a seed."""
    rng = random.Random(seed)
    return lambda legal: str(rng.choice(legal))


def messy(seed: int) -> Policy:
    """Replies as a policy in training gives them: mostly usable, in many dresses."""
    rng = random.Random(seed)

    def reply(legal: Sequence[int]) -> str:
        action = rng.choice(legal)
        return rng.choice(
            [
                f"{action}",
                f"  {action}\n",
                f"<think>{rng.randint(0, 20)} or so</think>\n{action}",
                f"{action}<think>never closed {rng.randint(0, 20)}",
                f"no open tag {rng.randint(0, 20)}</think>{action}",
                f"I bid {action}.",
                f"{action} or {rng.choice(legal)}",
                f"Bid: {action + 1}",
                "",
                "?",
                "99",
                "\u2028\x85\x1e naïve 💥 \t\x00",
            ]
        )

    return reply


def then(replies: Sequence[str], policy: Policy) -> Policy:
    """First `replies`, then `policy`."""
    planned: Iterator[str] = iter(replies)

    def reply(legal: Sequence[int]) -> str:
        first = next(planned, None)
        return policy(legal) if first is None else first

    return reply


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process brings about."""
    while not condition():  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0.01)
