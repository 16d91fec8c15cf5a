"""Facts that all processes of a run share: files, limits, deadline; written as run.json.

Invariant: times are Unix seconds counted from the container's start, so that no restart of any
process moves the deadline.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from miner.config.contract import FIRST_FORMAT_DTYPE, ServedDtype
from miner.config.run_files import HEARTBEAT_FILE
from miner.config.settings import EvaluationSettings

TRAINER, INFERENCE, WATCHDOG = "trainer", "inference", "watchdog"


def evaluation_seconds(planned: EvaluationSettings, games: int) -> float:
    """Seconds that so many held-out games take by a plan for others."""
    return planned.seconds * games / planned.episodes


class RunPlan(BaseModel):
    """One run, as the watchdog and the exit status see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_dir: Path = Field(description="Files of the run; the trainer's own are in its train/.")
    output_dir: Path = Field(description="The published model.")
    socket: Path = Field(description="supervisord's control socket.")
    started_at: float = Field(description="Start of the container.")
    trainer_ends_at: float = Field(description="The trainer is asked to stop; it publishes.")
    ends_at: float = Field(description="Everything is stopped.")
    kill_at: float = Field(description="The container may be killed.")
    by_hand: bool = Field(False, description="The user set some of the trainer's settings.")
    served_dtype: ServedDtype = Field(
        FIRST_FORMAT_DTYPE, description="Precision in which the published model is served."
    )
    servers: tuple[str, ...] = Field((), description="Environment servers.")
    inference_health: str | None = Field(None, description="URL of vLLM's health endpoint.")
    adapter_learning_rate: float | None = Field(
        None, description="Adapters', where they take over from full fine-tuning; empty: its own."
    )
    least_memory_share: float = Field(
        0.1, description="Of a GPU, below which vLLM has no room for its weights and an episode."
    )
    unserved_evaluation: EvaluationSettings | None = Field(
        None, description="Held-out games, if the trainer has to generate before the base's."
    )
    disk_seconds: float = Field(
        300.0, gt=0, description="Until a full disk must have room again for another attempt."
    )
    stop_seconds: float = Field(7.0, gt=0, description="Between SIGTERM and SIGKILL of a program.")
    stall_seconds: float = Field(900.0, gt=0, description="Longest silence of the trainer.")
    inference_silent_seconds: float = Field(
        60.0, gt=0, description="Longest silence of an inference server that has answered."
    )
    max_restarts: int = Field(4, ge=0, description="Restarts of the trainer.")
    poll_seconds: float = Field(1.0, gt=0, description="Between two looks of the watchdog.")

    @property
    def heartbeat_file(self) -> Path:
        """Written by the trainer."""
        return self.train_dir / HEARTBEAT_FILE

    @property
    def train_dir(self) -> Path:
        """The trainer's run_dir."""
        return self.run_dir / "train"

    @property
    def settings_file(self) -> Path:
        """The trainer's settings; rewritten by the watchdog when it steps down the ladder."""
        return self.run_dir / "trainer.toml"

    @property
    def supervisor_file(self) -> Path:
        """supervisord's configuration."""
        return self.run_dir / "supervisord.conf"

    @property
    def outcome_file(self) -> Path:
        """Written when the run is over; not on the output's disk, which may be full by then."""
        return self.socket.with_suffix(".outcome")

    @property
    def plan_file(self) -> Path:
        """This plan."""
        return self.run_dir / "run.json"

    def write(self) -> None:
        """Write `plan_file`."""
        self.plan_file.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> RunPlan:
        """The plan that `write` wrote. Raises: `ValidationError`, OSError."""
        return cls.model_validate_json(path.read_text())
