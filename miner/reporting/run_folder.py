"""A run on disk: place of each record, writing, and reading all of it.

    metrics.jsonl       one `StepRecord` per training step
    evaluations.jsonl   one `EvaluationRecord` per evaluation
    settings.toml       the resolved settings
    heartbeat.json      the trainer's phase, step and time
    episodes.jsonl      the newest training episodes, one `TrainedEpisode` each
    probe.json          what the conformance probe found
    replays/*.json      one `Replay` per game kept

Invariant: a missing file means "nothing yet" and never an error; a report can be made at any time,
also of a run that was killed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from miner.config.channel_facts import FACTS
from miner.config.contract import is_game
from miner.config.errors import ConfigurationError
from miner.config.heartbeat import Heartbeat, last_heartbeat
from miner.config.recipes import read_toml
from miner.config.run_files import HEARTBEAT_FILE, write_atomically
from miner.reporting.records import (
    LOGPROB_GAP,
    EvaluationRecord,
    RecordFile,
    Replay,
    StepRecord,
    explain,
    latest_per_step,
)


def check_run_dir(run_dir: Path) -> None:
    """Raise `ConfigurationError` if there is no such folder."""
    if not run_dir.is_dir():
        raise ConfigurationError(f"{run_dir} is not a folder: name the run_dir of a training run")


class RunFolder:
    """Writes and locates the records of one run.

    Args:
        path: the run's folder; created by the first write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = RecordFile(path / "metrics.jsonl", StepRecord)
        self.evaluations = RecordFile(path / "evaluations.jsonl", EvaluationRecord)

    def add_replay(self, name: str, replay: Replay) -> Path:
        """Write a replay under `name` (a file stem; an older one of that name is replaced)."""
        folder = self.path / "replays"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        write_atomically(path, replay.model_dump_json(indent=1))
        return path

    def write_probe(self, report: Mapping[str, Any]) -> None:
        """Keep the probe's findings, as its own JSON."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "probe.json", json.dumps(report, indent=1))

    def read_probe(self) -> dict[str, Any]:
        """The probe's findings. Raises: `ConfigurationError`."""
        return _read_json(self.path / "probe.json")

    def read(self) -> Run:
        """Everything that is there.

        Raises: `ConfigurationError` naming the file for contents that are not such a record.
        """
        steps, torn_steps = self.steps.read()
        evaluations, torn_evaluations = self.evaluations.read()
        replays: dict[str, Replay] = {}
        for path in sorted((self.path / "replays").glob("*.json")):
            try:
                replays[path.stem] = Replay.model_validate_json(path.read_bytes())
            except ValidationError as error:
                raise ConfigurationError(f"{path} is not a replay: {explain(error)}") from None
        return self.run_of(steps, evaluations, torn_steps + torn_evaluations, replays)

    def run_of(
        self,
        steps: Sequence[StepRecord],
        evaluations: Sequence[EvaluationRecord],
        torn_lines: int,
        replays: Mapping[str, Replay],
    ) -> Run:
        """A run of these records with the rest of the folder. Raises: as `read`."""
        settings = self.path / "settings.toml"
        return Run(
            name=self.path.resolve().name,
            settings=read_toml(settings) if settings.exists() else {},
            probe=self.read_probe(),
            steps=latest_per_step(steps),
            evaluations=list(evaluations),
            replays=dict(replays),
            torn_lines=torn_lines,
            heartbeat=last_heartbeat(self.path / HEARTBEAT_FILE),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """All records of a run.

    Attributes:
        settings, probe: as written; empty when there are none.
        steps: ascending, each once.
        replays: by file stem, in alphabetical order.
        torn_lines: lines lost to a kill.
        heartbeat: the trainer's last one.
    """

    name: str
    settings: dict[str, Any]
    probe: dict[str, Any]
    steps: list[StepRecord]
    evaluations: list[EvaluationRecord]
    replays: dict[str, Replay]
    torn_lines: int
    heartbeat: Heartbeat | None = None

    @property
    def environments(self) -> list[str]:
        """Names of the environments played, as far as known."""
        evaluated = {record.environment for record in self.evaluations}
        return sorted(evaluated | {replay.environment for replay in self.replays.values()})

    @property
    def of_games(self) -> bool:
        """Return whether episodes are games against an opponent, which are won and lost."""
        names = [name.partition(":")[0] for name in self.environments]
        channel = self.settings.get("environment", {}).get("channel", "auto")
        if not names and channel in FACTS:
            return FACTS[channel].first_format or FACTS[channel].duels
        return not names or "duel" in names or any(map(is_game, names))

    @property
    def first_gap(self) -> float:
        """Logprob gap of the first step, the reference for growth; infinite before it."""
        gaps = (r.metrics[LOGPROB_GAP] for r in self.steps if LOGPROB_GAP in r.metrics)
        return next(gaps, math.inf)

    @property
    def limited_by_time(self) -> bool:
        """Return whether training ended by itself where a time limit was set."""
        deadline = self.settings.get("deadline", {})
        timed = deadline.get("seconds") is not None or deadline.get("ends_at") is not None
        return timed and self.heartbeat is not None and self.heartbeat.phase == "done"

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to report."""
        return not (self.settings or self.steps or self.evaluations or self.replays)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ConfigurationError(f"{path} is no JSON file: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} holds {type(value).__name__}, expected a JSON object")
    return value
