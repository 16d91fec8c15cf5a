"""Results of an evaluation: one record per episode, and the summary read off them.

Invariant: an episode either counts (`score` in [0, 1]) or was excluded because the environment's
infrastructure failed, a prompt had no room, this machine was too slow for what no grader times, or
the time for the whole list was over (`score` None); nothing else is ever left out of the mean.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from miner.config.contract import agent_seat, is_game
from miner.environments.base import EpisodeTask
from miner.evaluation.statistics import Estimate, Group, grouped, mean_score
from miner.games import deck_size

Failure = Literal[
    "invalid_replies",
    "timeout",
    "protocol",
    "policy",
    "too_long",
    "too_slow",
    "no_time",
    "infrastructure",
]
EpisodeKey = tuple[str, int, int, str]

EXCLUDING: tuple[Failure, ...] = ("too_long", "too_slow", "no_time", "infrastructure")
"""Failures of episodes that no score counts, in any channel."""

_COLUMNS = ("seed", "task_id", "deck_size", "seat", "score", "failure", "turns", "tries")


def deal_of(key: EpisodeKey) -> Hashable:
    """Equal for both seats of a duel, for `miner.evaluation.statistics`."""
    environment, task_id, _, opponent = key
    return environment, task_id, opponent


class Reply(BaseModel):
    """One reply of the policy, and what the environment made of it.

    Attributes:
        text: the policy's words, verbatim.
        action: the action that was played; None where none was, or where it is not known.
        valid: true if a legal action was found.
        number: true if the reply named an action, by its fault or as it held a number at all.
        cut: true if the sampler's limit of tokens ended it.
        fault: reason why it is invalid, where the environment gives one.
        shown: messages that it answered, where episodes cannot be played again from actions.
        reward: reward of the turn as the environment gave it.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    action: int | None
    valid: bool = True
    number: bool = True
    cut: bool = False
    fault: str = ""
    shown: tuple[str, ...] = ()
    reward: float = 0.0


class EpisodeRecord(BaseModel):
    """One evaluated episode.

    Attributes:
        score: graded score in [0, 1]; None if the episode was excluded.
        seat: the agent's player number, None where there is only one.
        deck_size: cards per hand; None in games of one size.
        failure: cause of a score of 0 or None; None for an episode played to its end.
        message: the failure in words.
        tries: number of times that the episode was started.
    """

    model_config = ConfigDict(frozen=True)

    environment: str
    task_id: int
    seed: int
    opponent: str
    seat: int | None = None
    deck_size: int | None = None
    score: float | None = Field(ge=0, le=1)
    failure: Failure | None = None
    message: str = ""
    tries: int = 1
    seconds: float = 0.0
    replies: tuple[Reply, ...] = ()

    @classmethod
    def of(cls, task: EpisodeTask, **found: Any) -> EpisodeRecord:
        """The record of an episode of `task` with the other fields as `found`."""
        return cls(
            environment=task.environment,
            task_id=task.task_id,
            seed=task.seed,
            opponent=task.opponent,
            seat=agent_seat(task.seed) if is_game(task.environment) else None,
            deck_size=deck_size(task.environment, task.task_id),
            **found,
        )

    @property
    def key(self) -> EpisodeKey:
        """Equal for the same game of any policy."""
        return self.environment, self.task_id, self.seed, self.opponent

    @property
    def turns(self) -> int:
        """Turns that were answered with a legal action."""
        return sum(reply.valid for reply in self.replies)

    @property
    def parse_failures(self) -> int:
        """Replies that name no action."""
        return sum(not reply.valid and not reply.number for reply in self.replies)

    @property
    def illegal_replies(self) -> int:
        """Replies that name an action, but no legal one."""
        return sum(not reply.valid and reply.number for reply in self.replies)


class EvaluationResult(BaseModel):
    """All episodes of one policy on one list, in the list's order.

    Attributes:
        likelihoods: scores are likelihoods of recorded replies, not results of what was played.
    """

    model_config = ConfigDict(frozen=True)

    policy: str
    channel: str
    environment: str
    temperature: float | None = None
    seconds: float = 0.0
    likelihoods: bool = False
    episodes: tuple[EpisodeRecord, ...]

    @property
    def score(self) -> Estimate | None:
        """Mean score with its interval; None when every episode was excluded."""
        counted = [(e.score, deal_of(e.key)) for e in self.episodes if e.score is not None]
        if not counted:
            return None
        return mean_score(*zip(*counted, strict=True), likelihoods=self.likelihoods)

    @property
    def unplayed(self) -> tuple[EpisodeRecord, ...]:
        """Episodes that were excluded or that the policy could not play."""
        return tuple(e for e in self.episodes if e.score is None or e.failure == "policy")

    @property
    def by_deck_size(self) -> dict[int, Estimate]:
        """Score of each deck size, ascending."""
        return self._by(lambda episode: episode.deck_size)

    @property
    def by_seat(self) -> dict[int, Estimate]:
        """Score of each seat."""
        return self._by(lambda episode: episode.seat)

    @property
    def by_game(self) -> dict[str, Estimate]:
        """Score of each game, where several were played."""
        games = self._by(lambda episode: episode.environment)
        return games if len(games) > 1 else {}

    @property
    def by_opponent(self) -> dict[str, dict[str, Estimate]]:
        """Score of each game against each opponent, where several were met."""
        found: dict[str, dict[str, Estimate]] = {}
        pairs = self._by(lambda episode: (episode.environment, episode.opponent))
        for (game, opponent), score in pairs.items():
            found.setdefault(game, {})[opponent] = score
        return found if len(self.opponents) > 1 else {}

    @property
    def opponents(self) -> tuple[str, ...]:
        """All that were met, by name."""
        return tuple(sorted({episode.opponent for episode in self.episodes}))

    @property
    def faults(self) -> dict[str, int]:
        """Number of episodes that were lost by a reply with each fault that an environment has
        named."""
        last = (episode.replies[-1].fault for episode in self.episodes if episode.replies)
        return dict(Counter(filter(None, last)))

    @property
    def scores(self) -> dict[EpisodeKey, float]:
        """Score of each game that counted, for `paired_difference` with another policy."""
        return {e.key: e.score for e in self.episodes if e.score is not None}

    @property
    def parse_failures(self) -> int:
        """Replies that name no action, over all episodes."""
        return sum(episode.parse_failures for episode in self.episodes)

    @property
    def illegal_replies(self) -> int:
        """Replies that name an action, but no legal one, over all episodes."""
        return sum(episode.illegal_replies for episode in self.episodes)

    @property
    def replies(self) -> int:
        """Replies asked of the policy, over all episodes."""
        return sum(len(episode.replies) for episode in self.episodes)

    def by_seed(self) -> str:
        """A table for other programs (CSV): one game a line, by seed, with its score."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(_COLUMNS)
        for episode in sorted(self.episodes, key=lambda episode: (episode.seed, episode.task_id)):
            table.writerow(getattr(episode, column) for column in _COLUMNS)
        return text.getvalue()

    def first_message(self, failure: Failure) -> str:
        """Of the first episode that ended so. Raises: StopIteration if none did."""
        return next(each.message for each in self.episodes if each.failure == failure)

    def failures(self) -> dict[Failure, int]:
        """Number of episodes that ended in each kind of failure."""
        return dict(Counter(episode.failure for episode in self.episodes if episode.failure))

    def _by(self, key: Callable[[EpisodeRecord], Group | None]) -> dict[Group, Estimate]:
        return grouped(
            (k, e.score, deal_of(e.key))
            for e in self.episodes
            if e.score is not None and (k := key(e)) is not None
        )
