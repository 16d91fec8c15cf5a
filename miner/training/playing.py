"""A run's games, played with the trainer's current weights: groups to learn from, held-out lists.

Invariants: an episode that was played to its end with the right weights is kept; one that may have
been played with others is not; the number of recoveries of the inference servers is bounded.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

from miner.background_loop import BackgroundLoop, unless
from miner.config.channel_facts import FACTS, ChannelFacts
from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import has_begun
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentSource, EpisodeTask, InfrastructureError
from miner.environments.outages import Outages, Stopwatch
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.results import EvaluationResult
from miner.evaluation.runner import Rules, evaluate
from miner.evaluation.shares import joined, shares
from miner.inference.engines import EngineLoss, GenerationEngine
from miner.inference.sampler import EngineLostError, SamplingParams
from miner.learning.learner import Learner
from miner.learning.schedule import Schedule
from miner.learning.trainer import EpisodeTrainer
from miner.publishing.publisher import Publisher
from miner.reporting.episode_log import EpisodeLog
from miner.reporting.progress import TrainingProgress
from miner.rollout.episode import EpisodeParams, Guide, RolloutStopped, never, sampled
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.training.engine_choice import live_episodes
from miner.training.stopping import StopRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_OUTAGE_S = 300.0
"""All outages before the base has been evaluated; then the orchestrator waits, or has the game
played in the trainer's process."""

LONGEST_OUTAGE_S = 1800.0
"""All outages of a run that has no deadline: the user will want to know."""

RETRY_S, RETRY_PAUSE_S = 30.0, 2.0
"""For how long a rollout that servers which answer have failed whole is begun again, and the pause
before. Servers that fail for longer have to be probed again, by another attempt of the trainer."""

MOST_RECOVERIES = 3
"""Of one rollout; beyond it the server will not stay up, and the orchestrator has to decide."""

Play = Callable[[Sequence[Group]], list[GroupResult]]


@dataclass(frozen=True)
class OpenRun:
    """Parts of a run, each opened after those that it needs.

    Attributes:
        source: where episodes are played; used from `loop` only.
        heartbeat: beats with every finished episode.
        dark: runs while no environment server answers.
        publisher: rank 0's alone.
    """

    settings: Settings
    ranks: Ranks
    stop: StopRequest
    heartbeat: HeartbeatWriter
    learner: Learner
    trainer: EpisodeTrainer
    loop: BackgroundLoop
    engine: GenerationEngine
    source: EnvironmentSource
    progress: TrainingProgress
    publisher: Publisher | None
    schedule: Schedule
    dark: Stopwatch

    @property
    def facts(self) -> ChannelFacts:
        """Of the channel."""
        return FACTS[self.settings.environment.channel]


class Rollouts:
    """Plays games of a run; each rank its share of them. All methods are collective."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._settings = run.settings
        self._engine = run.engine
        self._ranks = run.ranks
        held = live_episodes(run.settings, run.ranks)
        self._places = min(held, max(1, run.source.capacity // run.ranks.count))
        self._episodes = EpisodeLog(run.settings.run_dir)
        self._outages = Outages(
            run.source,
            run.dark,
            patience=self._patience,
            note=run.progress.note,
            waiting=lambda: run.heartbeat.beat("waiting for environment servers"),
        )

    def player(self, guide: Guide | None = None) -> Play:
        """Return a player of groups, sampled as in training; what the engine lost is played again.

        A request to stop ends episodes at their next turn.

        Args:
            guide: see `EpisodeParams`.
        """
        rollout = self._settings.rollout
        scheduler = Scheduler(
            self._run.source,
            sampled(
                self._engine.sampler,
                self._run.learner.renderer,
                EpisodeParams(
                    SamplingParams(rollout.max_reply_tokens, rollout.temperature),
                    rollout.episode_limit,
                    self._run.stop,
                    guide,
                ),
            ),
            retry=RetryParams(episode_seconds=rollout.episode_seconds),
            on_episode=self._ended,
            places=self._places,
            outages=self._outages,
        )

        def play(groups: Sequence[Group]) -> list[GroupResult]:
            playing = retrying(
                lambda: scheduler.run(groups), self._patience, self._run.progress.note
            )
            return self._run.loop.run(playing)

        return lambda groups: play_through(self._engine, play, groups)

    def evaluate(self, tasks: Sequence[EpisodeTask]) -> EvaluationResult:
        """Play `tasks` greedily with the current weights.

        They are those that would be published; other engines than the trainer's own model get no
        others. After the base's, games that are not over when the last publication has to begin are
        left out. Raises: `RolloutStopped` if asked to stop before the first step, on all ranks.
        """
        limits = self._settings.rollout
        longest = self._settings.held_out_reply_tokens
        policy = SamplerPolicy(
            "model",
            self._engine.sampler,
            self._run.learner.renderer,
            SamplingParams(longest, temperature=0.0),
            limits.episode_limit,
            min(longest, limits.max_reply_tokens),
        )
        rules = Rules(concurrency=self._places, timeout_s=limits.episode_seconds)
        dealt = shares(tasks, self._ranks.count)
        own_tasks = [tasks[index] for index in dealt[self._ranks.rank]]
        learned = self._run.trainer.state.global_step > 0
        stopped = never if learned else self._run.stop

        def play() -> EvaluationResult | None:
            self._run.heartbeat.beat("evaluation")  # all may be played at once, for minutes
            if tasks and not own_tasks:  # fewer than ranks
                name = self._run.source.name
                return EvaluationResult(policy="model", channel=name, environment="", episodes=())
            playing = evaluate(
                policy,
                self._run.source,
                own_tasks,
                rules,
                lambda _: self._run.heartbeat.beat("evaluation"),
                self._outages,
                seconds=self._run.schedule.for_evaluation() if learned else math.inf,
            )
            return self._run.loop.run(unless(stopped, playing))

        own = limits.engine == "transformers"
        with self._run.learner.as_published() if own else nullcontext():
            parts = self._ranks.gather(repeat_until_held(self._engine, play))
        played = [result for result in parts if result is not None]
        if len(played) < len(parts):
            raise RolloutStopped
        lost = any("infrastructure" in result.failures() for result in played)
        if not self._begun() and any(self._ranks.gather(lost and self._run.dark.runs)):
            raise InfrastructureError(
                f"no environment server answered for {FIRST_OUTAGE_S:g} s, so that games of the "
                "base model's evaluation were lost: start them again"
            )
        return joined(played, dealt)

    def _ended(self, outcome: Outcome) -> None:
        self._run.heartbeat.beat("rollout")
        if self._ranks.leads:
            self._episodes.add(outcome)

    def _begun(self) -> bool:
        """Return false where the orchestrator may have the game played without servers yet."""
        return not self._run.facts.first_format or has_begun(self._settings.run_dir)

    def _patience(self) -> float:
        """Seconds for which servers that are away are waited for from now on."""
        if self._run.stop.received:
            return 0.0
        left = self._run.schedule.patience()
        if not self._begun():
            left = min(left, FIRST_OUTAGE_S - self._run.dark.seconds())
        return left if math.isfinite(left) else LONGEST_OUTAGE_S - self._run.dark.seconds()


async def retrying(
    play: Callable[[], Awaitable[list[GroupResult]]],
    patience: Callable[[], float],
    note: Callable[[str], None],
) -> list[GroupResult]:
    """Return the result of `play`, which is called again where servers that answer fail it whole.

    Args:
        patience: seconds that may be waited from now on.
    """
    results, clock = await play(), asyncio.get_running_loop().time
    lost, until = _all_lost_to_servers(results), clock() + RETRY_S
    if lost and patience() > 0:
        note(f"all episodes were lost, and are played again for {RETRY_S:g} s at most: {lost}")
    while lost and patience() > 0 and clock() + RETRY_PAUSE_S <= until:
        await asyncio.sleep(RETRY_PAUSE_S)
        results = await play()
        lost = _all_lost_to_servers(results)
    return results


def _all_lost_to_servers(results: Sequence[GroupResult]) -> InfrastructureError | None:
    """The last failure, if no episode has come to its end for want of a server that works."""
    outcomes = [outcome for result in results for outcome in result.outcomes]
    errors = [outcome.error for outcome in outcomes if isinstance(outcome, LostEpisode)]
    failures = [error for error in errors if isinstance(error, InfrastructureError)]
    return failures[-1] if failures and len(failures) == len(outcomes) else None


def play_through(
    engine: GenerationEngine, play: Play, groups: Sequence[Group]
) -> list[GroupResult]:
    """Play `groups` with the engine's current weights.

    Raises: `EngineLostError` if the engine is lost for good.
    """
    with engine.playing():
        results = play(groups)
        for loss in _engine_losses(engine):
            results = _again(results, play) if loss.noticed else play(groups)
        return results


def repeat_until_held(engine: GenerationEngine, play: Callable[[], T]) -> T:
    """Return the result of a `play` during which the engine was not lost. Raises:
    `EngineLostError`."""
    with engine.playing():
        result = play()
        for _ in _engine_losses(engine):
            result = play()
        return result


def _engine_losses(engine: GenerationEngine) -> Iterator[EngineLoss]:
    """Each loss of the engine, after it has recovered from it. Raises: `EngineLostError`."""
    for _ in range(MOST_RECOVERIES):
        loss = engine.engine_loss()
        if loss is None:
            return
        logger.warning("inference was lost while episodes were played: %s", loss.line)
        engine.recover()
        yield loss
    loss = engine.engine_loss()
    if loss is not None:
        raise EngineLostError(
            f"inference was lost {MOST_RECOVERIES + 1} times in one rollout: {loss.line}"
        )


def _again(results: list[GroupResult], play: Play) -> list[GroupResult]:
    """Play what the engine lost once more; everything else stays as it is."""
    missing = [sum(map(_engine_lost, result.outcomes)) for result in results]
    again = [
        Group(result.group.task, count)
        for result, count in zip(results, missing, strict=True)
        if count
    ]
    played = iter(play(again) if again else ())
    return [
        _merged(result, next(played)) if count else result
        for result, count in zip(results, missing, strict=True)
    ]


def _merged(result: GroupResult, second: GroupResult) -> GroupResult:
    fresh = iter(second.outcomes)
    outcomes = tuple(next(fresh) if _engine_lost(o) else o for o in result.outcomes)
    return replace(result, outcomes=outcomes)


def _engine_lost(outcome: Outcome) -> bool:
    return isinstance(outcome, LostEpisode) and isinstance(outcome.error, EngineLostError)
