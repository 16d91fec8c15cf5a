"""Record of a training step: a line in `metrics.jsonl`, a heartbeat and progress."""

import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.config.heartbeat import HeartbeatWriter
from miner.environments import EnvironmentSource
from miner.learning.schedule import Schedule
from miner.reporting.progress import TrainingProgress
from miner.reporting.records import (
    COMPUTED_TOKENS,
    HALVINGS,
    LEFT_OUT,
    LOGPROB_GAP,
    REGRET,
    ROW_TOKENS,
    ROWS,
    TARGET_KL,
    StepRecord,
    gap_is_wide,
)
from miner.reporting.run_folder import RunFolder
from miner.training.rollout_function import RolloutFunction

IN_STEP = ("playing", "weights")
"""Phases of a step; what it spends on nothing else, it spends on learning."""

BETWEEN_STEPS = ("evaluation", "publication", "keeping")
"""Phases after a step and before its record."""

TRAINER_METRICS = (
    *("loss", "grad_norm", "learning_rate", "entropy", "kl", "frac_reward_zero_std"),
    *(LOGPROB_GAP, "sampling/sampling_logp_difference/max"),
    *(HALVINGS, REGRET, TARGET_KL, "sampling/importance_sampling_ratio/mean"),
    *(ROWS, LEFT_OUT, ROW_TOKENS, COMPUTED_TOKENS),
)


class Recorder(TrainerCallback):
    """Turns TRL's log of a step and the rollout's statistics into one record.

    Args:
        rollout: has the latest step's statistics.
        source: knows the share of actions that were applied as asked.
    """

    def __init__(
        self,
        run_dir: Path,
        progress: TrainingProgress,
        schedule: Schedule,
        rollout: RolloutFunction,
        source: EnvironmentSource,
        heartbeat: HeartbeatWriter,
    ) -> None:
        self._run = RunFolder(run_dir)
        self._progress = progress
        self._schedule = schedule
        self._rollout = rollout
        self._source = source
        self._heartbeat = heartbeat
        self._began = time.monotonic()
        self._recorded: float | None = None
        self._first_gap: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._schedule.taken_phases()  # the base's evaluation is part of no step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._recorded is not None:  # saving comes between a step's record and the next step
            self._schedule.spend("saving", time.monotonic() - self._recorded)
        self._began = time.monotonic()
        self._heartbeat.beat("step", state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        stats = self._rollout.latest
        if not logs or "reward" not in logs or stats is None or not state.is_world_process_zero:
            return
        spent = self._schedule.taken_phases()
        between = sum(spent.get(phase, 0.0) for phase in BETWEEN_STEPS)
        seconds = time.monotonic() - self._began - between
        logs = logs | {REGRET: self._rollout.regret}
        record = StepRecord(
            step=state.global_step,
            total_steps=state.max_steps,
            time=time.time(),
            seconds=seconds,
            **stats.model_dump(),
            tokens_per_second=stats.total_tokens / seconds,
            action_applied_rate=self._source.applied_rate,
            phases={
                "learning": max(0.0, seconds - sum(spent.get(phase, 0.0) for phase in IN_STEP)),
                **spent,
            },
            eta_seconds=self._schedule.seconds_left(state.global_step),
            metrics={
                name: float(logs[name]) for name in TRAINER_METRICS if logs.get(name) is not None
            },
        )
        self._run.steps.append(record)
        self._compare_gaps(record)
        self._progress.update(record)
        if not record.learns:
            self._progress.note(
                f"step {record.step}: nothing to learn: "
                "no reply was better or worse than its baseline"
            )
        self._recorded = time.monotonic()

    def _compare_gaps(self, record: StepRecord) -> None:
        """Alarm where engine and trainer disagree; growth is measured from the run's first step."""
        gap = record.metrics.get(LOGPROB_GAP)
        if gap is None:
            return
        if self._first_gap is None:
            self._first_gap = self._run.read().first_gap
        first = self._first_gap
        if gap_is_wide(gap, first):
            compared = f", in the first step by {first:.3f}" if math.isfinite(first) else ""
            self._progress.note(
                f"step {record.step}: logprobs of engine and trainer differ by {gap:.3f} on "
                f"average{compared}: check dtype, temperature and weight transfer"
            )
