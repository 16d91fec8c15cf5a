"""A look at one's own environment before anything is trained on it.

It plays a few tasks with replies that anyone might give: those the class names, words of what was
shown, and nonsense. GRPO compares episodes of one task, so equal tasks must be equal games, however
many others are played at the same time.

Invariant: what cannot be trained on is a `ConfigurationError`; what is only odd is a remark.
"""

import asyncio
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from miner.config.errors import ConfigurationError
from miner.environments.base import (
    Environment,
    EnvironmentSource,
    EpisodeTask,
    TaskStream,
    Transition,
)
from miner.environments.errors import EnvironmentFault, ProtocolError
from miner.environments.findings import Findings
from miner.environments.own.source import NAME
from miner.environments.own.text_environment import TextEnvironment
from miner.environments.playing import play

TASKS = 24
PLAYS = 4
"""Of each task, with other replies each time."""
LONGEST_S = 120.0
"""Until only the episodes that were played are compared, those of two tasks at least."""
NONSENSE = ("", "?", "-1", "ja" * 200, "\N{SNOWMAN}\n\n<|im_end|>", "null")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Episode:
    """Transcript of one, from both sides, and its score in [0, 1]."""

    task: EpisodeTask
    opening: str
    exchanges: tuple[tuple[str, str, bool], ...]
    score: float


async def check_environment(
    kind: type[TextEnvironment],
    source: EnvironmentSource,
    tasks: TaskStream,
    clock: Callable[[], float] = time.monotonic,
) -> Findings:
    """Play and compare.

    Raises: `ConfigurationError` naming what is wrong, with the seed that shows it.
    """
    chosen = [tasks.training(index, seed=0) for index in range(TASKS)]
    plans = [(task, number) for task in chosen for number in range(PLAYS)]
    alone: list[Episode] = []
    until = clock() + LONGEST_S
    try:
        while len(alone) < 2 * PLAYS or (len(alone) < len(plans) and clock() < until):
            alone.append(await _episode(source.open(), kind, *plans[len(alone)]))
        plans = plans[: len(alone)]
        again = await asyncio.gather(*(_episode(source.open(), kind, *plan) for plan in plans))
        reused = source.open()
        _compare(alone[:1], [await _episode(reused, kind, *plans[0])], "played again")
        after = [await _episode(reused, kind, *plan) for plan in plans[1 : 2 * PLAYS]]
    except EnvironmentFault as error:
        raise ConfigurationError(
            f"{error}; this must not happen with any reply: fix it, then try again with "
            "python -m miner probe"
        ) from error
    _compare(alone[1 : 2 * PLAYS], after, "played by an object that has played before")
    _compare(alone, again, "played side by side with others")
    return _findings(kind, alone)


def _findings(kind: type[TextEnvironment], episodes: Sequence[Episode]) -> Findings:
    """Facts and remarks; an episode in full for the terminal."""
    name, (low, high) = kind.__name__, kind.score_range
    scores = [episode.score for episode in episodes]
    turns = [len(episode.exchanges) for episode in episodes]
    tasks = math.ceil(len(episodes) / PLAYS)
    openings = len({episode.opening for episode in episodes})
    longest = max(episodes, key=lambda episode: (episode.score, len(episode.exchanges)))
    seed = longest.task.seed
    lines = [f"One episode in full, with replies drawn at random (seed {seed}):", longest.opening]
    for reply, answer, valid in longest.exchanges:
        mark = "" if valid else " (not valid)"
        lines.append(f"  > {reply[:80]!r}{mark}  {answer[:200]}".rstrip())
    mapped = "." if (low, high) == (0, 1) else f", whose {low:g} is shown as 0 and {high:g} as 1."
    return Findings(
        channel=NAME,
        environment=name,
        reason=f"{name}: {len(scores)} episodes of {tasks} tasks, equal for equal tasks, alone and "
        f"side by side; {min(turns)} to {max(turns)} replies, scores {min(scores):.2f} to "
        f"{max(scores):.2f}, {openings} different openings",
        scoring=f"Scores are those of {name}{mapped}",
        notes=tuple(_remarks(kind, episodes)),
        picture=Text("\n".join([*lines, f"  score {longest.score:.2f}"]), style="dim"),
    )


class _AnyReplies:
    """`Conversation` of any replies, the same for the same task and number."""

    def __init__(self, kind: type[TextEnvironment], number: int) -> None:
        self._own = kind.replies
        self._number = number
        self.opening = ""
        self.turns: list[tuple[str, str, bool]] = []
        self._reply = ""

    def begin(self, task: EpisodeTask, observation: Any) -> None:
        self._rng = random.Random(f"{task.seed}/{self._number}")
        self.opening = observation.messages[-1]["content"]
        self._words = _WORD.findall(self.opening)

    async def reply(self) -> str:
        await asyncio.sleep(0)  # others get their turn in between
        kinds = [self._own, self._own, self._words, NONSENSE] if self._own else [self._words]
        pool: Sequence[str] = self._rng.choice(kinds) or NONSENSE
        if not self._own and self._rng.random() < 0.2:
            pool = NONSENSE
        self._reply = self._rng.choice(pool)
        return self._reply

    def observe(self, transition: Transition) -> None:
        answer = transition.messages[-1]["content"] if transition.messages else ""
        self._words = _WORD.findall(answer) or self._words
        self.turns.append((self._reply, answer, transition.valid))

    async def close(self) -> None:
        pass


async def _episode(
    environment: Environment, kind: type[TextEnvironment], task: EpisodeTask, number: int
) -> Episode:
    conversation = _AnyReplies(kind, number)
    try:
        score = await play(environment, task, conversation)
    except EnvironmentFault as error:
        raise ProtocolError(f"{error} (seed {task.seed})", server=error.server) from error
    finally:
        await environment.close()
    return Episode(task, conversation.opening, tuple(conversation.turns), score)


def _compare(first: Sequence[Episode], second: Sequence[Episode], how: str) -> None:
    """Raises: `ConfigurationError` for the first pair that differs."""
    for one, other in zip(first, second, strict=True):
        if one == other:
            continue
        what = "it opens" if one.opening != other.opening else "equal replies are answered"
        raise ConfigurationError(
            f"{one.task.environment}: seed {one.task.seed} is another game when {how} ({what} "
            "differently), but the episodes of a group are compared and must be the same game: "
            "keep all state in self, set all of it in reset, and draw from random.Random(seed) "
            "only"
        )


def _remarks(kind: type[TextEnvironment], episodes: Sequence[Episode]) -> list[str]:
    remarks = []
    if len({episode.score for episode in episodes}) == 1:
        remarks.append(
            f"all {len(episodes)} episodes scored {episodes[0].score:.2f}: a policy that scores "
            "the same for every reply learns nothing (name replies that a policy might give in "
            f"{kind.__name__}.replies, or grade in smaller steps)"
        )
    if _one_game(episodes):
        remarks.append("every seed seems to be the same episode: does reset use its seed?")
    if not any(valid for episode in episodes for _, _, valid in episode.exchanges):
        remarks.append("no reply was valid: each costs reward.invalid_reply_penalty")
    return remarks


def _one_game(episodes: Sequence[Episode]) -> bool:
    """Return whether equal beginnings were always answered alike, for all seeds."""
    answers: dict[tuple[object, ...], object] = {(): episodes[0].opening}
    for episode in episodes:
        replies: list[object] = []
        if answers[()] != episode.opening:
            return False
        for reply, *answer in episode.exchanges:
            replies.append(reply)
            if answers.setdefault(tuple(replies), answer) != answer:
                return False
    return True
