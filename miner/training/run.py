"""One training run, from settings to a published model."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import PrinterCallback

from miner.environments import ConfigurationError, EnvironmentSource, InfrastructureError
from miner.environments.probe import open_source
from miner.evaluation.grader import held_out_list
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.results import EvaluationResult
from miner.evaluation.runner import Rules, evaluate
from miner.publishing.deadline import Deadline
from miner.publishing.merge import write_trained_model
from miner.publishing.publisher import Publisher
from miner.reporting.progress import TrainingProgress
from miner.reporting.run_folder import RunFolder
from miner.rollout.episode import EpisodeParams
from miner.rollout.groups import Group, GroupResult
from miner.rollout.loop import BackgroundLoop
from miner.rollout.model_folder import check_model_folder, load_model_folder
from miner.rollout.sampler import SamplingParams
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.rollout.transformers_sampler import TransformersSampler
from miner.training.checkpoints import CheckpointMarker
from miner.training.heart import Heart
from miner.training.held_out import HeldOut
from miner.training.pace import Pace
from miner.training.recorder import Recorder
from miner.training.rollout_function import RolloutFunction, episode_reward
from miner.training.run_dir import prepare_run_dir
from miner.training.settings import Settings
from miner.training.signals import StopRequest
from miner.training.tasks import training_dataset
from miner.training.trainer import EpisodeTrainer, grpo_config

logger = logging.getLogger(__name__)

SERVER_PATIENCE_S = 60.0
"""How long environment servers may take to start."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: the published model's folder, its step and its held-out score."""

    output_dir: Path
    step: int
    score: float


class Learner:
    """The model and everything that samples from it while it is trained.

    Raises: `ConfigurationError` if the folder's model or tokenizer cannot be used.
    """

    def __init__(self, settings: Settings, base: Path) -> None:
        self._base = base
        loaded = load_model_folder(base, getattr(torch, settings.model.dtype))
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.renderer = loaded.renderer
        self.sampler = TransformersSampler(
            self.model,
            self.tokenizer,
            max_sessions=max(settings.episodes_per_step, settings.evaluation.episodes),
            seed=settings.seed,
        )

    def save(self, folder: Path) -> None:
        """Write the current weights into `folder`, all else as the base has it."""
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".weights-") as weights:
            self.model.save_pretrained(weights)
            write_trained_model(self._base, Path(weights), folder)


class Run:
    """The parts of one run, wired together.

    Args:
        source: where episodes are played; used from `loop` only.
        spent_before: training seconds of earlier processes of this run.
        heart: beats with every finished episode.
    """

    def __init__(
        self,
        settings: Settings,
        learner: Learner,
        source: EnvironmentSource,
        loop: BackgroundLoop,
        spent_before: float,
        heart: Heart,
    ) -> None:
        self._settings = settings
        self._learner = learner
        self._source = source
        self._loop = loop
        self._heart = heart
        self.pace = Pace(
            settings.optimizer.max_steps,
            settings.deadline.seconds,
            _deadline(settings.deadline.ends_at),
            spent_before,
        )
        rollout = settings.rollout
        self._scheduler = Scheduler(
            source,
            learner.sampler,
            learner.renderer,
            EpisodeParams(
                SamplingParams(rollout.max_reply_tokens, rollout.temperature),
                rollout.max_episode_tokens,
            ),
            retry=RetryParams(
                infrastructure_attempts=rollout.attempts, episode_seconds=rollout.episode_seconds
            ),
            on_episode=lambda _: heart.beat("rollout"),
        )
        self._held_out = held_out_list(
            settings.evaluation.episodes,
            settings.evaluation.base_seed,
            settings.environment.name,
            sizes=settings.environment.deck_sizes
            if settings.environment.name == "goofspiel"
            else (),
        )
        self.rollout = RolloutFunction(
            self._play, settings.reward, learner.renderer.eos_token_id, settings.seed
        )

    def evaluate(self) -> EvaluationResult:
        """Play the held-out list greedily with the current weights."""
        self._learner.sampler.invalidate()
        sampling = SamplingParams(self._settings.rollout.max_reply_tokens, temperature=0.0)
        policy = SamplerPolicy("model", self._learner.sampler, self._learner.renderer, sampling)
        rules = Rules(
            concurrency=self._source.capacity, timeout_s=self._settings.rollout.episode_seconds
        )
        playing = evaluate(
            policy, self._source, self._held_out, rules, lambda _: self._heart.beat("evaluation")
        )
        return self._loop.run(playing)

    def trainer(self) -> EpisodeTrainer:
        """The trainer, without callbacks."""
        settings = self._settings
        return EpisodeTrainer(
            model=self._learner.model,
            args=grpo_config(settings),
            processing_class=self._learner.tokenizer,
            train_dataset=training_dataset(settings),
            reward_funcs=[episode_reward],
            rollout_func=self.rollout,
            credit=settings.reward.credit,
            scale=settings.reward.scale,
            decay=settings.reward.decay,
            learning_rate_factor=self.pace.learning_rate_factor(settings.optimizer),
        )

    def _play(self, groups: Sequence[Group]) -> list[GroupResult]:
        self._learner.sampler.invalidate()
        return self._loop.run(self._scheduler.run(groups))


def train(settings: Settings, console: Console | None = None) -> TrainResult:
    """Train by `settings`, resuming the run in `settings.run_dir` if there is one.

    Raises: `ConfigurationError`, `InfrastructureError`, `PublishingError`, `TokenizerError`; each
        message says what to do.
    """
    base, output = _checked_paths(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    console = console or Console()
    checkpoint = prepare_run_dir(settings)
    stop = StopRequest()
    stop.install()
    heart = Heart(settings.run_dir)
    with ExitStack() as stack:
        heart.beat("loading the model")
        learner = Learner(settings, base)
        stack.callback(learner.sampler.close)
        publisher = Publisher(output, in_process=True)  # nothing patches model loading here
        if checkpoint is None or publisher.current() is None:
            publisher.publish_base(base)
        loop = stack.enter_context(BackgroundLoop())
        heart.beat("probing the environment servers")
        source = stack.enter_context(_episodes(settings, loop, console))
        run = Run(settings, learner, source, loop, checkpoint.elapsed if checkpoint else 0.0, heart)
        first = checkpoint.step if checkpoint else 0
        progress = TrainingProgress(settings.optimizer.max_steps, start=first, console=console)
        stack.enter_context(progress)
        held_out = HeldOut(
            run.evaluate,
            publisher,
            learner.save,
            settings.run_dir,
            run.pace,
            every_steps=settings.evaluation.every_steps,
            note=progress.note,
        )
        held_out.start()
        trainer = run.trainer()
        recorder = Recorder(
            settings.run_dir,
            progress,
            run.pace,
            lambda: run.rollout.latest,
            lambda: source.applied_rate,
            heart,
        )
        trainer.remove_callback(PrinterCallback)  # progress shows the same in one line
        for callback in (recorder, held_out, run.pace, stop, CheckpointMarker(run.pace)):
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
        held_out.consider(trainer.state.global_step)
        heart.beat("done", trainer.state.global_step)
    return TrainResult(output, held_out.best.step, held_out.best.mean)


def _checked_paths(settings: Settings) -> tuple[Path, Path]:
    """The base model's folder and the output path. Raises: `ConfigurationError`."""
    base, output = settings.model.path, settings.output.dir
    if base is None:
        raise ConfigurationError("model.path is not set: name the folder of the base model")
    check_model_folder(base, named="model.path ")
    if output is None:
        raise ConfigurationError("output.dir is not set: name the folder to publish the model to")
    return base, output


def _deadline(ends_at: float | None) -> Deadline | None:
    """The deadline for a kill at Unix time `ends_at`."""
    if ends_at is None:
        return None
    now = time.time()
    return Deadline.from_wall_clock(max(0.0, ends_at - now), started_at_unix=now)


@contextmanager
def _episodes(
    settings: Settings, loop: BackgroundLoop, console: Console
) -> Iterator[EnvironmentSource]:
    """The source of episodes that settings and probe choose; the findings go to `probe.json`."""
    wanted = settings.environment
    if not wanted.servers and wanted.channel != "builtin":
        raise ConfigurationError(
            "no environment server is named: set ENVIRONMENT_SERVER_URLS=http://host:port[,...], "
            "or environment.channel=builtin to play in this process"
        )
    source, report = loop.run(
        open_source(wanted.servers, wanted.channel, wanted.name, patience_s=SERVER_PATIENCE_S)
    )
    try:
        problems = [server.problem for server in report.servers]
        if problems and all(problems) and wanted.channel == "auto":
            raise InfrastructureError(
                f"no environment server can be used ({problems[0]}): start one, correct "
                "ENVIRONMENT_SERVER_URLS, or set environment.channel=builtin"
            )
        RunFolder(settings.run_dir).write_probe(report.to_json())
        if report.servers:
            console.print(report.shown())
        if wanted.channel != "auto":
            console.print(f"channel {source.name}, as environment.channel says", highlight=False)
        yield source
    finally:
        loop.run(source.close())
