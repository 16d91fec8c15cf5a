"""One training run, from settings to a published model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from transformers import PrinterCallback

from miner.background_loop import BackgroundLoop
from miner.channels.registry import make_channel
from miner.config.contract import served_dtype
from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import CHECKPOINTS
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentSource
from miner.environments.outages import Outages
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.results import EvaluationResult, interleaved
from miner.evaluation.runner import Rules, evaluate
from miner.inference.engines import GenerationEngine, NewWeights
from miner.inference.merged_weights import weights_on_cpu
from miner.inference.sampler import SamplingParams
from miner.publishing.deadline import Deadline
from miner.publishing.publisher import PublishedScore, Publisher
from miner.reporting.episode_log import EpisodeLog
from miner.reporting.progress import TrainingProgress
from miner.rollout.episode import EpisodeParams, RolloutStopped, never
from miner.rollout.groups import Group, GroupResult, Outcome
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    RunDisk,
    checkpoint_bytes,
    newest_checkpoint,
)
from miner.training.demonstrations import with_warm_start
from miner.training.engine_choice import open_engine
from miner.training.episodes import training_dataset, training_source, with_episode_limit
from miner.training.held_out import HeldOut
from miner.training.learner import Learner
from miner.training.preparation import checked_paths
from miner.training.recorder import Recorder
from miner.training.recovery import play_through, repeat_until_held
from miner.training.revert import BestWeights, RevertToBest
from miner.training.rollout_function import RolloutFunction, all_moves_credit, episode_reward
from miner.training.schedule import Schedule
from miner.training.stopping import StopConsensus, StopRequest
from miner.training.temperature import FittedTemperature, TimeForRounds, fit_temperature, round_size
from miner.training.trainer import EpisodeTrainer, UpdateGuard, grpo_config
from miner.training.trl_warnings import silence_harmless_warnings

LONGEST_OUTAGE_S = 1800.0
"""All outages of a run that has no deadline: a person will want to know."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: the published model's folder, its step and its held-out score."""

    output_dir: Path
    step: int
    score: float


class Run:
    """The parts of one run, wired together.

    Args:
        source: where episodes are played; used from `loop` only.
        engine: what generates.
        resumed: where an earlier process of this run came to.
        heartbeat: beats with every finished episode.
        stop: ends the run, a step's episodes, and the wait for servers that are away.
        note: shows a line to the person who watches.
        ranks: of this run; each has a `Run` of its own and plays its share.
    """

    def __init__(
        self,
        settings: Settings,
        learner: Learner,
        engine: GenerationEngine,
        source: EnvironmentSource,
        loop: BackgroundLoop,
        resumed: Checkpoint | None,
        heartbeat: HeartbeatWriter,
        ranks: Ranks,
        stop: StopRequest,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._ranks = ranks
        self._learner = learner
        self._engine = engine
        self._source = source
        self._loop = loop
        self._heartbeat = heartbeat
        self._stop = stop
        self._episodes = EpisodeLog(settings.run_dir)
        self._note = note
        self._outages = Outages(
            source,
            patience=self._patience,
            say=note,
            waiting=lambda: heartbeat.beat("waiting for environment servers"),
        )
        self.schedule = Schedule(
            settings.optimizer.max_steps,
            settings.deadline.seconds,
            Deadline.at(settings.deadline.ends_at),
            resumed.elapsed if resumed else 0.0,
            idle=lambda: self._outages.dark_seconds,
        )
        wanted = settings.evaluation
        self.channel = make_channel(settings.environment)
        self._held_out = self.channel.tasks.held_out(wanted.episodes, wanted.base_seed)
        self.rollout = RolloutFunction(
            self.schedule.timed("playing", lambda groups: self._play(self._scheduler, groups)),
            settings.reward,
            learner.renderer.eos_token_id,
            ranks,
            all_moves_credit(settings.reward, learner.renderer, source),
        )
        self.guard = UpdateGuard()
        self.trainer = self._make_trainer()
        base, output = checked_paths(settings)
        self._disk = RunDisk.beside(output, base, settings.run_dir, note)
        self._checkpoints = Checkpoints(
            *(self.schedule, ranks, heartbeat, self._disk),
            size=checkpoint_bytes(learner.model, zero=settings.optimizer.zero_stage > 0),
            seconds_apart=settings.checkpoint.seconds_apart,
            sound=lambda: self.guard.streak == 0,
        )
        engine.attach(self.trainer)
        self._places = max(1, source.capacity // ranks.count)
        self._scheduler = self._scheduler_at(settings.rollout.temperature, stop)

    def fit_temperature(self) -> FittedTemperature | None:
        """Sample and train at the temperature that fits the base, if that is wanted.

        An earlier process of this run has found it already, or it is found now, before anything is
        learned.
        """
        rollout, run_dir = self._settings.rollout, self._settings.run_dir
        if rollout.most_invalid is None:
            return None
        fit = self._ranks.broadcast(FittedTemperature.read(run_dir))
        if fit is None:
            self._heartbeat.beat("looking for the temperature")
            in_time = TimeForRounds(self.schedule.training_left())
            fit = fit_temperature(
                *(rollout.temperature, rollout.most_invalid, self._play_round),
                room=lambda: self._ranks.broadcast(in_time()),
            )
            if self._ranks.leads:
                fit.write(run_dir)
        self.trainer.sample_at(fit.temperature)
        self._scheduler = self._scheduler_at(fit.temperature, self._stop)
        return fit

    def watch(self, progress: TrainingProgress, held_out: HeldOut) -> None:
        """Give the trainer its callbacks, in the order in which they are called."""
        self.trainer.remove_callback(PrinterCallback)  # progress shows the same in one line
        recorder = Recorder(
            self._settings.run_dir,
            progress,
            self.schedule,
            lambda: self.rollout.latest,
            lambda: self.rollout.regret,
            lambda: self._source.applied_rate,
            self._heartbeat,
        )
        callbacks = (
            recorder,
            NewWeights(self._engine),
            held_out,
            self.schedule,
            *self._reverts(held_out),
            self._stop,
            StopConsensus(self._ranks),
            self._checkpoints,
        )
        for callback in callbacks:
            self.trainer.add_callback(callback)

    def learn(self, checkpoint: Checkpoint | None) -> None:
        """Train to the end; where a step is given up, save what it has left, unless it is saved."""
        trainer = self.trainer
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
        except RolloutStopped:
            self._note(f"asked to stop: step {trainer.state.global_step + 1} is given up")
            newest = newest_checkpoint(self._settings.run_dir / CHECKPOINTS)
            saved = self._ranks.broadcast(newest.step if newest else 0)
            step = trainer.state.global_step
            save = step > saved and self._checkpoints.allows(step, ending=True)
            trainer.end_between_steps(save=save)
        self._ranks.gather(None)  # no rank samples any more

    def _reverts(self, held_out: HeldOut) -> list[RevertToBest]:
        most, run_dir = self._settings.optimizer.most_halvings, self._settings.run_dir
        if not most:
            return []
        best = BestWeights(self._learner, self._ranks, self._disk)
        parts = (held_out, self.trainer, best, self._engine, self._ranks, self.schedule)
        return [RevertToBest(*parts, self._heartbeat, run_dir, most=most, note=self._note)]

    def evaluate(self) -> EvaluationResult:
        """Play the held-out list greedily with the current weights, each rank its share.

        They are those that would be published; other engines than the trainer's own model get no
        others.
        """
        limits, sampler = self._settings.rollout, self._engine.sampler
        sampling = SamplingParams(limits.max_reply_tokens, temperature=0.0)
        renderer = self._learner.renderer
        policy = SamplerPolicy("model", sampler, renderer, sampling, limits.episode_limit)
        rules = Rules(concurrency=self._places, timeout_s=limits.episode_seconds)
        share = self._held_out[self._ranks.rank :: self._ranks.count]

        def play() -> EvaluationResult:
            return self._loop.run(
                evaluate(
                    policy,
                    self._source,
                    share,
                    rules,
                    lambda _: self._heartbeat.beat("evaluation"),
                    self._outages,
                )
            )

        own = self._settings.rollout.engine == "transformers"
        with self._learner.as_published() if own else nullcontext():
            return interleaved(self._ranks.gather(repeat_until_held(self._engine, play)))

    def publish(self, publisher: Publisher | None, score: PublishedScore) -> None:
        """Publish the current weights, which all ranks help to put together; rank 0 has the
        publisher, and raises `PublishingError`."""
        weights = weights_on_cpu(self._learner.model, keep=self._ranks.leads)

        def publish() -> None:
            assert publisher is not None
            publisher.publish(lambda folder: self._learner.save(folder, weights), score)

        self._ranks.lead_does(publish)

    def _scheduler_at(self, temperature: float, stopped: Callable[[], bool] = never) -> Scheduler:
        rollout = self._settings.rollout
        return Scheduler(
            self._source,
            self._engine.sampler,
            self._learner.renderer,
            EpisodeParams(
                SamplingParams(rollout.max_reply_tokens, temperature),
                rollout.episode_limit,
                stopped,
            ),
            retry=RetryParams(episode_seconds=rollout.episode_seconds),
            on_episode=self._ended,
            places=self._places,
            outages=self._outages,
        )

    def _ended(self, outcome: Outcome) -> None:
        self._heartbeat.beat("rollout")
        if self._ranks.leads:
            self._episodes.add(outcome)

    def _play_round(self, temperature: float, number: int) -> tuple[int, int]:
        """See `PlayRound`; each rank plays its share of the games."""
        ranks, tasks = self._ranks, self.channel.tasks
        scheduler = self._scheduler_at(temperature)
        size = round_size(tasks.kinds)
        games = [
            Group(tasks.training(index, self._settings.seed), 1)
            for index in range(number * size + ranks.rank, (number + 1) * size, ranks.count)
        ]
        results = self._play(scheduler, games)
        forfeits = [game.forfeited for result in results for game in result.trajectories]
        counts = ranks.gather((len(forfeits), sum(forfeits)))
        episodes, forfeited = map(sum, zip(*counts, strict=True))
        return episodes, forfeited

    def _play(self, scheduler: Scheduler, groups: Sequence[Group]) -> list[GroupResult]:
        """Play groups; those that the engine lost are played again with the same tasks."""
        return play_through(self._engine, lambda some: self._loop.run(scheduler.run(some)), groups)

    def _patience(self) -> float:
        """Seconds for which servers that are away are waited for from now on."""
        if self._stop.received:
            return 0.0
        left = self.schedule.training_left()
        return left if math.isfinite(left) else LONGEST_OUTAGE_S - self._outages.dark_seconds

    def _make_trainer(self) -> EpisodeTrainer:
        """The trainer, without callbacks."""
        settings, renderer, source = self._settings, self._learner.renderer, self._source
        rollout = with_warm_start(self.rollout, settings, self.schedule.fraction, renderer, source)
        other_engine, cuda = settings.rollout.engine != "transformers", torch.cuda.is_available()
        trainer = EpisodeTrainer(
            model=self._learner.model,
            args=grpo_config(settings, num_processes=self._ranks.count, cuda=cuda),
            processing_class=self._learner.tokenizer,
            train_dataset=training_dataset(settings),
            reward_funcs=[episode_reward],
            rollout_func=rollout,
            credit=settings.reward.credit,
            decay=settings.reward.decay,
            results=settings.reward.results,
            learning_rate_factor=self.schedule.learning_rate_factor(
                settings.optimizer, self._ranks
            ),
            sync_weights=self.schedule.timed("weights", self._engine.sync_weights)
            if other_engine
            else None,
            guard=self.guard,
            tokens_per_pass=settings.optimizer.micro_batch_tokens,
            agree=self._ranks.most,
        )
        # DeepSpeed moves it only when training begins; the base model is evaluated before
        self._learner.model.to(trainer.accelerator.device)
        return trainer


def train(settings: Settings, console: Console, ranks: Ranks) -> TrainResult:
    """Train by `settings`, resuming the run in `settings.run_dir` if there is one.

    `prepare_run` comes first.

    Args:
        console: rank 0's is for a person, the others' are quiet.
        ranks: the processes that do so together; each of them calls this.

    Raises: `ConfigurationError`, `InfrastructureError`, `PublishingError`, `TokenizerError`; each
        message says what to do. `LeadFailedError` where rank 0 has raised one of them.
    """
    base, output = checked_paths(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    checkpoint = newest_checkpoint(settings.run_dir / CHECKPOINTS)
    silence_harmless_warnings()
    stop = StopRequest()
    stop.install()
    heartbeat = HeartbeatWriter(settings.run_dir)
    with ExitStack() as stack:
        heartbeat.beat("loading the model")
        learner = Learner(settings, base)
        settings = with_episode_limit(settings, learner.renderer, learner.context)
        # DeepSpeed patches model loading: a model has to be verified outside of its reach
        in_process = not settings.optimizer.zero_stage
        dtype = served_dtype(settings.environment.channel)
        publisher = Publisher(output, in_process=in_process, dtype=dtype) if ranks.leads else None
        loop = stack.enter_context(BackgroundLoop())
        waiting = partial(heartbeat.beat, "waiting for the inference server")
        engine = open_engine(settings, learner, loop, waiting, ranks)
        stack.callback(engine.close)
        heartbeat.beat("probing the environment servers")
        source = stack.enter_context(training_source(settings, loop, console, ranks))
        progress = TrainingProgress(settings.optimizer.max_steps, console=console)
        parts = (settings, learner, engine, source, loop, checkpoint, heartbeat, ranks, stop)
        run = Run(*parts, progress.note)
        stack.enter_context(progress)
        if checkpoint:
            progress.note(f"going on from step {checkpoint.step}")
        held_out = HeldOut(
            *(run.evaluate, partial(run.publish, publisher), settings.run_dir, run.schedule),
            ranks=ranks,
            every_steps=settings.evaluation.every_steps,
            note=progress.note,
            replays=lambda result: loop.run(run.channel.replays(source, result, 2, progress.note)),
        )
        if (fitted := run.fit_temperature()) is not None:
            progress.note(f"sampling at {fitted}")
        held_out.start()
        run.watch(progress, held_out)
        run.learn(checkpoint)
        step = run.trainer.state.global_step
        if step < settings.optimizer.max_steps and not stop.received:
            progress.note("training ends here: the time given leaves no room for another step")
        held_out.consider(step)
        heartbeat.beat("stopped" if stop.received else "done", step)
        ranks.gather(None)  # nobody ends anything while another rank still works
        engine.detach()
    return TrainResult(output, held_out.best.step, held_out.best.mean)
