"""What happened in a rollout, in numbers. A pure function of the outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from miner.rollout.episode import EpisodeTooLong
from miner.rollout.groups import GroupResult
from miner.rollout.renderer import DriftKind
from miner.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """Counts over all episodes played.

    Attributes:
        groups: groups handed back.
        groups_without_variance: those among them whose members are all worth the same.
        episodes: finished episodes.
        lost: episodes that ended as a `LostEpisode`.
        too_long: those among them that hit the token limit.
        drift: continued turns by kind; their number is `turns - episodes`.
        turns: replies in finished episodes.
        invalid_replies: those among them that were not parsed into a legal action.
        truncated_replies: those among them that were cut off at the token limit.
        sampled_tokens: tokens that carry loss.
        total_tokens: tokens of all rows, prompts included.
        mean_score: mean graded score of finished episodes; NaN without any.
    """

    groups: int
    groups_without_variance: int
    episodes: int
    lost: int
    too_long: int
    drift: dict[DriftKind, int]
    turns: int
    invalid_replies: int
    truncated_replies: int
    sampled_tokens: int
    total_tokens: int
    mean_score: float

    @classmethod
    def of(
        cls,
        results: Sequence[GroupResult],
        worth: Callable[[Trajectory], float] = lambda trajectory: trajectory.score,
    ) -> RolloutStats:
        """Statistics of the results of one or more `Scheduler.run`.

        Args:
            worth: what makes members of a group differ; the graded score by default.
        """
        finished = [trajectory for result in results for trajectory in result.trajectories]
        lost = [episode for result in results for episode in result.lost]
        turns = [turn for trajectory in finished for turn in trajectory.turns]
        drift = Counter(turn.drift for trajectory in finished for turn in trajectory.turns[1:])
        return cls(
            groups=len(results),
            groups_without_variance=sum(
                len(set(map(worth, result.trajectories))) < 2 for result in results
            ),
            episodes=len(finished),
            lost=len(lost),
            too_long=sum(isinstance(episode.error, EpisodeTooLong) for episode in lost),
            drift={kind: drift[kind] for kind in DriftKind},
            turns=len(turns),
            invalid_replies=sum(not turn.valid for turn in turns),
            truncated_replies=sum(turn.finish_reason == "length" for turn in turns),
            sampled_tokens=sum(trajectory.sampled_tokens for trajectory in finished),
            total_tokens=sum(trajectory.total_tokens for trajectory in finished),
            mean_score=fmean(t.score for t in finished) if finished else math.nan,
        )

    @classmethod
    def merged(cls, parts: Sequence[RolloutStats]) -> RolloutStats:
        """Of all episodes behind `parts`, each of which was played by another process."""
        scored = [part for part in parts if part.episodes]
        episodes = sum(part.episodes for part in scored)
        summed = {
            field.name: sum(getattr(part, field.name) for part in parts)
            for field in fields(cls)
            if field.name not in ("drift", "mean_score")
        }
        return cls(
            **summed,
            drift={kind: sum(part.drift[kind] for part in parts) for kind in DriftKind},
            mean_score=sum(part.mean_score * part.episodes for part in scored) / episodes
            if episodes
            else math.nan,
        )
