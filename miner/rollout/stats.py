"""Statistics of a rollout. A pure function of the outcomes.

Reports read records with these numbers: importing this module imports no tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from miner.rollout.groups import GroupResult
    from miner.rollout.trajectory import Trajectory


class RolloutStats(BaseModel):
    """Counts over all episodes played; a step's record holds them as they are.

    Attributes:
        score, reward: means over own episodes: graded score, in [0, 1], and reward; None without
            any.
        tokens: sampled tokens, which carry loss.
        total_tokens: tokens of all rows, prompts included.
        prompt_tokens, cached_tokens: tokens of all turns' prompts, and those of them whose states
            the engine held, as far as it reports that.
        episodes, own_episodes: finished episodes, and those of them that the policy played; the
            others' moves were picked by a critic.
        lost_episodes, too_long_episodes: episodes that were lost for good, and those of them that
            could have passed the limit of tokens.
        replies, invalid_replies, cut_replies: replies in own episodes, those without a legal
            action, and those that were cut off at their limit of tokens.
        groups, flat_groups: GRPO groups, and those whose members all had the same reward.
        drift: continued turns by kind of token drift; their number is `replies - own_episodes`.
    """

    model_config = ConfigDict(frozen=True)

    score: float | None = None
    reward: float | None = None
    tokens: int = 0
    total_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    episodes: int = 0
    own_episodes: int = 0
    lost_episodes: int = 0
    too_long_episodes: int = 0
    replies: int = 0
    invalid_replies: int = 0
    cut_replies: int = 0
    groups: int = 0
    flat_groups: int = 0
    drift: dict[str, int] = {}

    @staticmethod
    def of(
        results: Sequence[GroupResult],
        reward: Callable[[Trajectory], float] = lambda trajectory: trajectory.score,
    ) -> RolloutStats:
        """Statistics of the results of one or more `Scheduler.run`.

        Args:
            reward: of an episode; the graded score by default.
        """
        from miner.rollout.episode import EpisodeTooLong

        finished = [trajectory for result in results for trajectory in result.trajectories]
        lost = [episode for result in results for episode in result.lost]
        own = [trajectory for trajectory in finished if trajectory.sampled_tokens]
        turns = [turn for trajectory in own for turn in trajectory.turns]
        drift = Counter(turn.drift.value for trajectory in own for turn in trajectory.turns[1:])
        return RolloutStats(
            score=fmean(trajectory.score for trajectory in own) if own else None,
            reward=fmean(map(reward, own)) if own else None,
            tokens=sum(trajectory.sampled_tokens for trajectory in finished),
            total_tokens=sum(trajectory.total_tokens for trajectory in finished),
            prompt_tokens=sum(turn.prompt_tokens for turn in turns),
            cached_tokens=sum(turn.cached_tokens for turn in turns),
            episodes=len(finished),
            own_episodes=len(own),
            lost_episodes=len(lost),
            too_long_episodes=sum(isinstance(each.error, EpisodeTooLong) for each in lost),
            replies=len(turns),
            invalid_replies=sum(not turn.valid for turn in turns),
            cut_replies=sum(turn.finish_reason == "length" for turn in turns),
            groups=len(results),
            flat_groups=sum(len(set(map(reward, result.trajectories))) < 2 for result in results),
            drift=dict(drift),
        )

    @staticmethod
    def merged(parts: Sequence[RolloutStats]) -> RolloutStats:
        """Of all episodes behind `parts`, each of which was played by another process."""
        counts = RolloutStats.model_fields.keys() - {"drift", "score", "reward"}
        summed = {name: sum(getattr(part, name) for part in parts) for name in counts}
        own = [part for part in parts if part.own_episodes]

        def mean(name: str) -> float | None:
            total = sum(getattr(part, name) * part.own_episodes for part in own)
            return total / summed["own_episodes"] if own else None

        return RolloutStats(
            **summed,
            score=mean("score"),
            reward=mean("reward"),
            drift=dict(sum((Counter(part.drift) for part in parts), Counter())),
        )
