"""TRL's rollout function: prompts in, one whole played episode for each out, as rows.

Invariants:
* equal consecutive prompts are one group and play the same game;
* all rows of an episode come out, next to each other and with their ids as they were sampled;
  every token to be trained is in exactly one of them;
* an episode that was lost, or has nothing to be trained, is a placeholder of one token without
  loss; a lost one has no reward either (TRL leaves it out of the group's baseline);
* masks have one entry per token: TRL itself would pad in silence.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from miner.config.errors import ConfigurationError
from miner.config.settings import DemonstrationSettings, RewardSettings
from miner.distributed.ranks import Ranks
from miner.duel.channel.environment import DuelSource
from miner.duel.own import taught_by
from miner.duel.values import DuelValues
from miner.environments import EnvironmentFault, EnvironmentSource, InfrastructureError
from miner.reporting.records import target_distances
from miner.rewards.all_moves import AllMoves
from miner.rewards.critic import Critic
from miner.rewards.episode import EpisodeReward
from miner.rewards.goofspiel_critic import GoofspielCritic
from miner.rewards.own_credit import load_credit
from miner.rollout.episode import RolloutStopped
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome, refusal
from miner.rollout.renderer import ChatRenderer
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import ENVIRONMENT_TURN, RolloutRow, Trajectory
from miner.training.episodes import decode_task

TrlRollout = Callable[[list[str], Any], dict[str, list[Any]]]
"""Function that TRL calls for a step: prompts and trainer in, columns out."""

PlayGroups = Callable[[Sequence[Group]], list[GroupResult]]
"""Plays groups; results are in their order."""


class RolloutFailedError(InfrastructureError):
    """No episode of a whole step could be played: training on nothing would hide an outage."""


class StepLostError(RuntimeError):
    """The same, where no server is at fault: no wait for one helps."""


FEW_TURNS = 2
"""Of an episode, if no number is set and each legal reply costs all that was said before: a chat
that is learned at every turn would be computed some six times."""


class RolloutFunction:
    """The callable handed to `GRPOTrainer(rollout_func=...)`.

    Args:
        play: plays groups of episodes.
        reward: settings of an episode's reward and which tokens are trained.
        eos_token_id: the placeholder's only token.
        ranks: each plays its own prompts; statistics are of all of them.
        all_moves: adds rows of each decision's legal replies; None where turns or episodes alone
            have the credit.
        fraction: optimizer step -> used-up share of the run.
        span: see `EpisodeReward`.
    """

    def __init__(
        self,
        play: PlayGroups,
        reward: RewardSettings,
        eos_token_id: int,
        ranks: Ranks,
        all_moves: AllMoves | None = None,
        fraction: Callable[[int], float] = lambda step: 0.0,
        span: float = 1.0,
    ) -> None:
        self._play = play
        self._all_moves = all_moves
        self._fraction = fraction
        self._by_turn = load_credit(reward.entry) if reward.credit == "own" else None
        self._rewards = EpisodeReward(reward.invalid_reply_penalty, span)
        self._most_turns = reward.most_turns
        self._eos = eos_token_id
        self.ranks = ranks
        self.latest: RolloutStats | None = None

    @property
    def regret(self) -> float | None:
        """Mean chance to win that the latest moves gave away, by the critic; None without one."""
        critic = self._all_moves
        return None if critic is None or math.isnan(critic.regret) else critic.regret

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode per prompt.

        Returns: prompt_ids, completion_ids, logprobs, env_mask as TRL documents them, with one
            entry per row; with one entry per prompt episode_reward (None for a lost episode),
            turn_rewards, turn_advantages (by a function of the user's), episode (what is recorded
            of it), by_policy (see `AllMoves`), and lists for each of the episode's rows: turn_ids,
            weights and entropies.
        Raises: `RolloutFailedError` if every episode was lost, the last one to a server, and
            `StepLostError` if to something here; `RolloutStopped` if episodes were aborted,
            `ConfigurationError` if one was lost to it: the others alone are a biased step; on all
            ranks.
        """
        groups = [
            Group(decode_task(prompt), sum(1 for _ in same)) for prompt, same in groupby(prompts)
        ]
        results = self._play(groups)
        outcomes = [outcome for result in results for outcome in result.outcomes]
        stats = RolloutStats.of(results, self._rewards.total)
        played = self.ranks.gather((stats, any(map(_given_up, outcomes)), refusal(results)))
        if any(stopped for _, stopped, _ in played):
            raise RolloutStopped
        if refusals := [why for *_, why in played if why]:
            raise ConfigurationError(refusals[0])
        self.latest = RolloutStats.merged([each for each, *_ in played])
        if self.ranks.most(sum(not isinstance(o, LostEpisode) for o in outcomes)) == 0:
            error = next(each.error for each in outcomes[::-1] if isinstance(each, LostEpisode))
            theirs = isinstance(error, EnvironmentFault)
            advice = "; check the environment servers" * theirs
            failure = RolloutFailedError if theirs else StepLostError
            raise failure(
                f"all {len(outcomes) * self.ranks.count} episodes of a step were lost, the last "
                f"one to: {error}{advice}"
            )
        if self._all_moves is not None:
            step = trainer.state.global_step
            _, last = next(target_distances(trainer.state.log_history), (step, None))
            self._all_moves.begin(*self.ranks.broadcast((self._fraction(step), last)))
        # a model that takes no trees would compute a decision's prompt for each of its replies
        columns = self._columns(outcomes, self._all_moves is None or trainer.takes_trees)
        if self._by_turn is not None:
            columns["turn_advantages"] = [
                values for result in results for values in self._by_turn(_finished(result.outcomes))
            ]
        if self._all_moves is not None:
            columns["by_policy"] = [self._all_moves.by_policy] * len(outcomes)
            self._all_moves.end(self.ranks.gather)
        return columns

    def _columns(self, outcomes: Sequence[Outcome], every: bool) -> dict[str, list[Any]]:
        rewards = self._rewards
        finished = _finished(outcomes)
        return columns_of([self._rows(each, every) for each in finished], self._eos) | {
            "turn_rewards": [each and rewards.by_turn(each) for each in finished],
            "episode_reward": [None if each is None else rewards.total(each) for each in finished],
            "episode": [each and _described(each, rewards) for each in finished],
        }

    def _rows(self, episode: Trajectory | None, every: bool) -> list[RolloutRow]:
        """The rows of an episode, with those of every legal reply or of one; none of a lost one."""
        if episode is None:
            return []
        turns = self._turns(episode, every)
        rows = [_trained_on(row, turns) for row in episode.rows]
        if self._all_moves is not None:
            rows += self._all_moves.rows(episode, turns, every=every)
        return rows

    def _turns(self, episode: Trajectory, every: bool) -> Collection[int]:
        """The turns to train, among them one that forfeited the game: the same for equal episodes
        on every rank. The share that is drawn weighs nothing: a long game would drown the others.
        """
        turns = range(len(episode.turns))
        most = self._most_turns or (len(turns) if every else FEW_TURNS)
        if len(turns) <= most:
            return turns
        rng = random.Random(f"{episode.task} {[turn.reply for turn in episode.turns]}")
        if episode.turns[-1].valid:
            return set(rng.sample(turns, most))
        return {turns[-1], *rng.sample(turns[:-1], most - 1)}


def columns_of(parts: Sequence[Sequence[RolloutRow]], eos_token_id: int) -> dict[str, list[Any]]:
    """Columns of rows, as `RolloutFunction` returns them, without rewards.

    Args:
        parts: rows by prompt; a placeholder takes the place of none, and rows without loss go.
    """
    placeholder = RolloutRow((eos_token_id,), (eos_token_id,), (0.0,), (0,), (ENVIRONMENT_TURN,))
    kept = [[row for row in part if any(row.loss_mask)] or [placeholder] for part in parts]
    rows = [row for part in kept for row in part]
    for row in rows:
        lengths = {len(row.completion_ids), len(row.logprobs), len(row.turn_ids)}
        if len(lengths) > 1:
            raise ValueError(f"a row's ids, logprobs and turn_ids differ in length: {lengths}")
    return {
        "prompt_ids": [row.prompt_ids for row in rows],  # not copied: replies share a long one
        "completion_ids": [list(row.completion_ids) for row in rows],
        "logprobs": [list(row.logprobs) for row in rows],
        "env_mask": [list(row.loss_mask) for row in rows],
        "turn_ids": [[list(row.turn_ids) for row in part] for part in kept],
        "weights": [[row.weight for row in part] for part in kept],
        "entropies": [[row.entropy for row in part] for part in kept],
    }


def unplayed_columns(
    parts: Sequence[Sequence[RolloutRow]], eos_token_id: int
) -> dict[str, list[Any]]:
    """`columns_of` for rows that come from no episode of the policy, so that none has a reward."""
    return columns_of(parts, eos_token_id) | {
        "turn_rewards": [None] * len(parts),
        "episode_reward": [0.0] * len(parts),
    }


def all_moves_credit(
    reward: RewardSettings,
    renderer: ChatRenderer,
    source: EnvironmentSource,
    demonstrations: DemonstrationSettings,
    draw: random.Random | None = None,
) -> AllMoves | None:
    """Credit for all legal moves, if that is wanted: of the games that `source` plays.

    Args:
        demonstrations: of duels, whose teacher is theirs.
        draw: see `AllMoves`.
    """
    if reward.credit != "all_moves":
        return None
    critic: Critic
    if isinstance(source, DuelSource):
        critic = DuelValues(source.family, taught_by(demonstrations.teacher), named=reward.named)
    else:
        critic = GoofspielCritic(reward.tau, named=reward.named)
    return AllMoves(critic, renderer.encode_reply, reward, draw)


def _described(episode: Trajectory, rewards: EpisodeReward) -> dict[str, Any]:
    task = episode.task
    name = f"{task.environment} against {task.opponent}, task {task.task_id}, seed {task.seed}"
    return {"task": name, "score": episode.score, "parts": rewards.parts(episode)}


def _finished(outcomes: Sequence[Outcome]) -> list[Trajectory | None]:
    return [None if isinstance(each, LostEpisode) else each for each in outcomes]


def _given_up(outcome: Outcome) -> bool:
    return isinstance(outcome, LostEpisode) and isinstance(outcome.error, RolloutStopped)


def _trained_on(row: RolloutRow, turns: Collection[int]) -> RolloutRow:
    """`row` with loss on the tokens of `turns` alone."""
    mask = (had * (turn in turns) for had, turn in zip(row.loss_mask, row.turn_ids, strict=True))
    return replace(row, loss_mask=tuple(mask))


def episode_reward(
    prompts: list[str], completions: list[str], episode_reward: list[float | None], **_: Any
) -> list[float | None]:
    """TRL's reward function: the rollout's rewards, None where the episode was lost."""
    return episode_reward
