"""Base of a custom environment: a class of some twenty lines.

class Guess(TextEnvironment):
    max_turns = 7

    def reset(self, seed: int) -> str:
        self.number = random.Random(seed).randrange(1, 101)
        return "Guess a number from 1 to 100."

    def step(self, reply: str) -> Step:
        ...
        return Step("higher")
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a reply: a text to answer next, or a score, with which the episode is over.

    Attributes:
        text: the user's next message; empty exactly at the end.
        score: within the class's `score_range`; None exactly before the end.
        valid: true if the reply was one at all; others cost `reward.invalid_reply_penalty`.
    """

    text: str = ""
    score: float | None = None
    valid: bool = True


class TextEnvironment:
    """One episode at a time: `reset`, then `step` for each reply. An object plays many in turn.

    Both may be coroutines; plain functions run between the replies of all other episodes, so one
    that waits for something should be a coroutine. What `step` and `score` raise twice loses the
    episode, which is no reward in training and scores 0 in an evaluation; raise
    `miner.environments.InfrastructureError` where a service of yours is away: it counts nowhere.

    Attributes:
        max_turns: replies of an episode at most; after so many `score` decides.
        score_range: lowest and highest score; it is mapped to 0..1.
        system: the system message; empty for none.
        stop: texts at the end of which each reply ends.
        problems: number of different episodes. `reset` then gets a number below it in the
            place of a seed, and a fifth of the numbers is held out. None: seeds without end.
        seconds: longest time that a method may take; beyond it the attempt is lost.
        replies: some that a policy might give; the check before training plays with them.
    """

    max_turns: ClassVar[int] = 8
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    system: ClassVar[str] = ""
    stop: ClassVar[tuple[str, ...]] = ()
    problems: ClassVar[int | None] = None
    seconds: ClassVar[float] = 60.0
    replies: ClassVar[tuple[str, ...]] = ()

    def reset(self, seed: int) -> str | Awaitable[str]:
        """Begin an episode, the same for the same seed. Returns: the first user message."""
        raise NotImplementedError

    def step(self, reply: str) -> Step | Awaitable[Step]:
        """Continue after the policy's reply."""
        raise NotImplementedError

    def score(self) -> float:
        """The score of an episode that `max_turns` ends; the lowest one, unless you know better."""
        return self.score_range[0]
