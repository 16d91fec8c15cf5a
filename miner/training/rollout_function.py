"""TRL's rollout function: prompts in, whole played episodes out, one row per prompt.

Invariants:
* equal consecutive prompts are one group and play the same game;
* a row that TRL gets is a whole episode's ids as they were sampled, or a placeholder of one token
  that carries no loss and no reward, for an episode that was lost (TRL leaves it out of the
  group's baseline);
* all lists have one entry per row, all masks one per token: TRL itself would pad in silence.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from miner.config.settings import RewardSettings
from miner.distributed.ranks import Ranks
from miner.environments import InfrastructureError
from miner.rewards.episode import EpisodeReward
from miner.rewards.potential import POTENTIALS
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow
from miner.training.tasks import decode_task

logger = logging.getLogger(__name__)

PlayGroups = Callable[[Sequence[Group]], list[GroupResult]]
"""Plays groups with the trainer's current weights and returns their results in order."""


class RolloutFailedError(InfrastructureError):
    """No episode of a whole step could be played: training on nothing would hide an outage."""


class RolloutFunction:
    """The callable handed to `GRPOTrainer(rollout_func=...)`.

    Args:
        play: plays groups of episodes.
        reward: settings of what an episode is worth and which tokens are trained.
        eos_token_id: the placeholder's only token.
        seed: for the choice among the rows of a forked episode.
        ranks: each plays its own prompts; statistics are of all of them.
    """

    def __init__(
        self,
        play: PlayGroups,
        reward: RewardSettings,
        eos_token_id: int,
        seed: int,
        ranks: Ranks,
    ) -> None:
        self._play = play
        self._worth = EpisodeReward(reward.invalid_reply_penalty, POTENTIALS.get(reward.shaping))
        self._first_turn_only = reward.learn_turns == "first"
        self._eos = eos_token_id
        self._ranks = ranks
        self._rng = random.Random(seed + ranks.rank)
        self.latest: RolloutStats | None = None

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode per prompt.

        Returns: prompt_ids, completion_ids, logprobs, env_mask as TRL documents them, and the
            columns episode_reward (None for a lost episode), turn_rewards and turn_ids.
        Raises: `RolloutFailedError` if every episode was lost, on all ranks.
        """
        groups = [
            Group(decode_task(prompt), sum(1 for _ in same)) for prompt, same in groupby(prompts)
        ]
        results = self._play(groups)
        self.latest = RolloutStats.merged(self._ranks.gather(RolloutStats.of(results)))
        outcomes = [outcome for result in results for outcome in result.outcomes]
        if self._ranks.most(sum(not isinstance(o, LostEpisode) for o in outcomes)) == 0:
            lost = [outcome for outcome in outcomes if isinstance(outcome, LostEpisode)]
            raise RolloutFailedError(
                f"all {len(lost) * self._ranks.count} episodes of a step were lost, the last one "
                f"to: {lost[-1].error}; check the environment servers"
            )
        return self._columns(outcomes)

    def _columns(self, outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
        rows = [self._row(outcome) for outcome in outcomes]
        columns: dict[str, list[Any]] = {
            "prompt_ids": [list(row.prompt_ids) for row in rows],
            "completion_ids": [list(row.completion_ids) for row in rows],
            "logprobs": [list(row.logprobs) for row in rows],
            "env_mask": [self._mask(row) for row in rows],
            "turn_ids": [list(row.turn_ids) for row in rows],
            "turn_rewards": [
                None if isinstance(o, LostEpisode) else self._worth.by_turn(o) for o in outcomes
            ],
            "episode_reward": [
                None if isinstance(o, LostEpisode) else self._worth.total(o) for o in outcomes
            ],
        }
        for name in ("logprobs", "env_mask", "turn_ids"):
            for row, values in zip(rows, columns[name], strict=True):
                if len(values) != len(row.completion_ids):
                    raise ValueError(
                        f"{name} has {len(values)} entries for {len(row.completion_ids)} tokens"
                    )
        return columns

    def _row(self, outcome: Outcome) -> RolloutRow:
        """The row to train on. A forked episode gives one of its rows, drawn uniformly: TRL takes
        exactly one per prompt, and each row is a valid sample of the policy on its own."""
        if isinstance(outcome, LostEpisode):
            return RolloutRow((self._eos,), (self._eos,), (0.0,), (0,), (-1,))
        return self._rng.choice(outcome.rows)

    def _mask(self, row: RolloutRow) -> list[int]:
        if self._first_turn_only:
            return [int(turn == 0) for turn in row.turn_ids]
        return list(row.loss_mask)


def episode_reward(
    prompts: list[str], completions: list[str], episode_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: the worth that the rollout found, None where the episode was lost."""
    return episode_reward
