"""One training run, from settings to a published model: `train` makes each part after those that it
needs."""

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from transformers import PrinterCallback, TrainerCallback

from miner.background_loop import BackgroundLoop
from miner.channels.registry import make_channel
from miner.config.channel_facts import FACTS
from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import CHECKPOINTS, Checkpoint, newest_checkpoint
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments.outages import Stopwatch
from miner.inference.engines import MemoryTrial, NewWeights
from miner.inference.merged_weights import weights_on_cpu
from miner.learning.checkpoints import (
    Checkpoints,
    RunDisk,
    checkpoint_bytes,
)
from miner.learning.learner import Learner
from miner.learning.schedule import Schedule, seconds_until
from miner.learning.trainer import EpisodeTrainer, grpo_config
from miner.publishing.best import Evaluated
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.reporting.progress import TrainingProgress
from miner.reporting.token_records import TokenRecords
from miner.rollout.episode import RolloutStopped
from miner.rollout.groups import Group, GroupResult
from miner.training.completions_table import CompletionsTable
from miner.training.demonstrations import WarmStart, warm_start
from miner.training.engine_check import check_engine
from miner.training.engine_choice import open_engine
from miner.training.episodes import training_dataset, training_source, with_episode_limit
from miner.training.held_out import Evaluate, HeldOut
from miner.training.playing import OpenRun, Rollouts
from miner.training.preparation import checked_paths
from miner.training.recorder import Recorder
from miner.training.revert import BestWeights, RevertToBest, kept_weights
from miner.training.rollout_function import (
    RolloutFunction,
    TrlRollout,
    all_moves_credit,
    episode_reward,
)
from miner.training.stopping import StopConsensus, StopRequest
from miner.training.supervised import Supervised, likelihood, recorded_rows, with_rows

SWITCH_SECONDS = 2e-4
"""Until a thread that computes in Python yields to another."""

STOPPED_EARLY = "asked to stop before training: the published model stays"


@dataclass(frozen=True)
class TrainResult:
    """Published model's folder, its step and held-out score (None: a base not evaluated)."""

    output_dir: Path
    step: int
    score: float | None


def _is_news(record: logging.LogRecord) -> bool:
    """Not TRL's warning of a lost episode with all its columns: the scheduler has logged it."""
    return "All reward functions returned None" not in str(record.msg)


def train(settings: Settings, console: Console, ranks: Ranks) -> TrainResult:
    """Train by `settings`, resuming the run in `settings.run_dir` if there is one.

    `prepare_run` comes first.

    Args:
        console: rank 0's is for the user, the others' are quiet.
        ranks: the processes that do so together; each of them calls this.

    Raises: `ConfigurationError`, `InfrastructureError`, `PublishingError`, `TokenizerError`; each
        message has the way out. `LeadFailedError` where rank 0 has raised one of them.
    """
    base, output = checked_paths(settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # threads compute games, and teachers' moves without processes: by default each wait of this one
    # takes 5 ms more
    sys.setswitchinterval(SWITCH_SECONDS)
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_news)
    stop = StopRequest()
    stop.install()
    heartbeat = HeartbeatWriter(settings.run_dir)
    with ExitStack() as stack:
        heartbeat.beat("loading the model")
        learner = Learner(settings, base)
        settings = with_episode_limit(settings, learner.renderer, learner.context)
        # DeepSpeed patches model loading: a model has to be verified outside of its reach
        in_process = not settings.optimizer.zero_stage
        dtype = FACTS[settings.environment.channel].served_dtype
        publisher = Publisher(output, in_process=in_process, dtype=dtype) if ranks.leads else None
        loop = stack.enter_context(BackgroundLoop())
        heartbeat.beat("probing the environment servers")
        try:
            source = stack.enter_context(training_source(settings, loop, console, ranks, stop))
        except RolloutStopped:
            console.print(STOPPED_EARLY)
            heartbeat.beat("stopped", 0)
            now = publisher.current() if publisher else None
            return TrainResult(output, now.step if now else 0, now.score if now else None)
        trainer = _make_trainer(settings, learner, ranks, heartbeat)
        waiting = partial(heartbeat.beat, "waiting for the inference server")
        engine = open_engine(settings, learner, trainer, loop, waiting, ranks)
        stack.callback(engine.close)
        steps = settings.optimizer.max_steps
        progress = stack.enter_context(TrainingProgress(steps, console=console))
        checkpoint = newest_checkpoint(settings.run_dir / CHECKPOINTS)
        kept = checkpoint is None and settings.optimizer.most_halvings
        begun = kept_weights(settings.run_dir, learner) if kept else checkpoint
        dark = Stopwatch()
        schedule = Schedule(
            steps,
            settings.deadline.seconds,
            seconds_until(settings.deadline.ends_at),
            begun.elapsed if begun else 0.0,
            idle=dark.seconds,
        )
        parts = (learner, trainer, loop, engine, source, progress, publisher, schedule, dark)
        run = OpenRun(settings, ranks, stop, heartbeat, *parts)
        best = _train(run, checkpoint)
    return TrainResult(output, best.step if best else 0, best.mean if best else None)


def _train(run: OpenRun, checkpoint: Checkpoint | None) -> Evaluated | None:
    """Evaluate the base, learn, evaluate the end; returns the published."""
    ranks, note = run.ranks, run.progress.note
    if checkpoint:
        note(f"resuming from step {checkpoint.step}")
    rollouts = Rollouts(run)
    held_out = _held_out(run, rollouts)
    step = checkpoint.step if checkpoint else 0
    warm = warm_start(run.settings, ranks, run.learner.renderer, run.source, step)
    if run.settings.rollout.engine != "transformers":
        gap = check_engine(
            *(run.engine, run.learner.renderer, run.loop, run.trainer.logprobs_of, ranks.gather),
            run.settings.rollout.temperature,
        )
        note(f"vLLM holds the trainer's weights: log-probabilities differ by {gap:.3f} nats")
    try:
        held_out.start()
    except RolloutStopped:
        note(STOPPED_EARLY)
        run.heartbeat.beat("stopped", 0)
    else:
        _learn_from(run, rollouts, held_out, warm, checkpoint)
    ranks.gather(None)  # no rank ends anything while another still works
    run.engine.detach()
    return held_out.best


def _learn_from(
    run: OpenRun,
    rollouts: Rollouts,
    held_out: HeldOut,
    warm: WarmStart | None,
    checkpoint: Checkpoint | None,
) -> None:
    """Learn, and evaluate the end."""
    settings, ranks, trainer, schedule = run.settings, run.ranks, run.trainer, run.schedule
    renderer = run.learner.renderer
    begun = checkpoint.step if checkpoint else 0
    draw = Random(f"{settings.seed}/replies/{ranks.rank}/{begun}")
    credit = all_moves_credit(settings.reward, renderer, run.source, settings.demonstrations, draw)
    share = settings.rollout.guided
    guide = None
    if credit and share:
        decay = settings.optimizer.decay_share
        guide = credit.guide(lambda: share * schedule.falling(trainer.state.global_step, decay))
    sync = schedule.timed("weights", run.engine.sync_weights)
    play_synced = schedule.timed("playing", rollouts.player(guide))

    def play_groups(groups: Sequence[Group]) -> list[GroupResult]:
        sync()  # here, so that an engine stays asleep in a step without games
        return play_synced(groups)

    low, high = settings.environment.openenv.return_range  # elsewhere the end alone is rewarded
    rollout = RolloutFunction(
        play_groups,
        settings.reward,
        renderer.eos_token_id,
        ranks,
        credit,
        schedule.fraction,
        high - low,
    )
    play: TrlRollout = rollout
    if run.facts.supervised:
        play = Supervised(settings, renderer, run.source, rollout)
    elif warm:
        play = warm.before(rollout, schedule.fraction)
    trainer.learn_from(
        play,
        schedule.learning_rate_factor(settings.optimizer, ranks),
        corrected=settings.rollout.engine != "transformers" and not run.facts.supervised,
    )
    checkpoints = _add_callbacks(run, rollout, held_out)
    _learn(run, checkpoint, checkpoints)
    step = trainer.state.global_step
    if step < settings.optimizer.max_steps and not run.stop.received:
        run.progress.note("training ends here: the time given leaves no room for another step")
    held_out.consider(step, last=True)
    if held_out.warning:
        run.progress.note(held_out.warning)
    run.heartbeat.beat("stopped" if run.stop.received else "done", step)


def _make_trainer(
    settings: Settings, learner: Learner, ranks: Ranks, heartbeat: HeartbeatWriter
) -> EpisodeTrainer:
    """The trainer, without callbacks and with nothing to learn from yet."""
    records = TokenRecords(settings.run_dir, settings.token_records, (ranks.rank, ranks.count))
    trainer = EpisodeTrainer(
        model=learner.model,
        args=grpo_config(settings, num_processes=ranks.count, cuda=torch.cuda.is_available()),
        processing_class=learner.tokenizer,
        train_dataset=training_dataset(settings),
        reward_funcs=[episode_reward],
        credit=settings.reward.credit,
        tokens=records,
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
        gather=ranks.gather,
        after_pass=lambda: heartbeat.beat("step"),
    )
    if settings.report_to:
        trainer.add_callback(
            CompletionsTable(records, settings.report_to, settings.run_dir / "report.html")
        )
    # DeepSpeed moves it only when training begins; the base model is evaluated before
    learner.model.to(trainer.accelerator.device)
    return trainer


def _held_out(run: OpenRun, rollouts: Rollouts) -> HeldOut:
    settings, note = run.settings, run.progress.note
    channel = make_channel(settings.environment)
    wanted, seed = settings.evaluation.episodes, settings.evaluation.base_seed
    if run.facts.supervised:
        rows = recorded_rows(settings, run.learner.renderer, run.source)
        tasks = with_rows(rows, channel.tasks.held_out(sys.maxsize, seed), wanted)
        play = partial(rollouts.evaluate, tasks)
        evaluate: Evaluate = partial(likelihood, rows, run.trainer, run.ranks, tasks, play)
    else:
        evaluate = partial(rollouts.evaluate, channel.tasks.held_out(wanted, seed))
    return HeldOut(
        *(evaluate, partial(_publish, run)),
        *(settings.run_dir, run.schedule),
        ranks=run.ranks,
        every_steps=settings.evaluation.every_steps,
        time_share=settings.evaluation.time_share,
        whole=settings.evaluation.seconds,
        engine=settings.rollout.engine,
        note=note,
        gate=channel.gate(),
        replays=lambda result: run.loop.run(channel.replays(run.source, result, 2, note)),
    )


def _publish(run: OpenRun, score: PublishedScore, last: bool) -> str:
    """Publish the current weights, which all ranks help to put together; rank 0 has the publisher.

    Returns: reason why they could not be written. Raises: `UnverifiedModelError` if no server could
        load them, and of the last ones `PublishingError`, after a second try.
    """
    weights = weights_on_cpu(run.learner.model, keep=run.ranks.leads)

    def write() -> None:
        assert run.publisher is not None
        run.publisher.publish(lambda folder: run.learner.save(folder, weights), score)

    def publish() -> str:
        try:
            write()
        except UnverifiedModelError:
            raise
        except PublishingError as error:
            if not last:
                return str(error)
            write()
        return ""

    return run.ranks.lead_does(publish)


def _add_callbacks(run: OpenRun, rollout: RolloutFunction, held_out: HeldOut) -> Checkpoints:
    """Give the trainer its callbacks, in the order in which they are called."""
    settings, ranks, trainer, note = run.settings, run.ranks, run.trainer, run.progress.note
    schedule = run.schedule
    base, output = checked_paths(settings)
    pushes = settings.rollout.engine == "vllm_server"
    disk = RunDisk.beside(output, base, settings.run_dir, note, pushes=pushes)
    checkpoints = Checkpoints(
        *(schedule, ranks, run.heartbeat, disk),
        size=checkpoint_bytes(run.learner.model, zero=settings.optimizer.zero_stage > 0),
        seconds_apart=settings.checkpoint.seconds_apart,
        sound=lambda: trainer.guard.streak == 0,
    )
    revert = RevertToBest(
        *(held_out, trainer, BestWeights(run.learner, ranks, disk), run.engine, ranks, schedule),
        *(run.heartbeat, settings.run_dir),
        most=settings.optimizer.most_halvings,
        targets=settings.reward.credit == "all_moves",
        note=note,
    )
    callbacks: list[TrainerCallback] = [
        Recorder(settings.run_dir, run.progress, schedule, rollout, run.source, run.heartbeat),
        NewWeights(run.engine),
        *([MemoryTrial(run.engine)] if settings.rollout.engine == "vllm_colocated" else []),
        held_out,
        schedule,
        *([revert] if settings.optimizer.most_halvings else []),
        run.stop,
        StopConsensus(ranks),
        checkpoints,
    ]
    trainer.remove_callback(PrinterCallback)  # progress shows the same in one line
    for callback in callbacks:
        trainer.add_callback(callback)
    return checkpoints


def _learn(run: OpenRun, checkpoint: Checkpoint | None, checkpoints: Checkpoints) -> None:
    """Train to the end; where a step is aborted, save what came before it, unless it is saved."""
    trainer, ranks = run.trainer, run.ranks
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    except RolloutStopped:
        if run.stop.received:
            run.progress.note(f"asked to stop: step {trainer.state.global_step + 1} is aborted")
        newest = newest_checkpoint(run.settings.run_dir / CHECKPOINTS)
        saved = ranks.broadcast(newest.step if newest else 0)
        step = trainer.state.global_step
        save = step > saved and checkpoints.allows(step, ending=True)
        trainer.end_between_steps(save=save)
    ranks.gather(None)  # no rank samples any more
