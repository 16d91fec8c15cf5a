"""Trackers are told what a step was like, below the run's folder, or are refused by name."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from transformers import TrainerControl, TrainerState

from miner.config.errors import ConfigurationError
from miner.reporting.token_records import TokenRecords
from miner.training import preparation
from miner.training.completions_table import CompletionsTable
from tests.training.in_process import Work, working_in
from tests.training.test_trainer import make_trainer
from tests.training.test_weighted_rows import rollout


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    for name in ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "WANDB_DIR", "WANDB_MODE"):
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)
    with working_in(tmp_path) as work:
        yield work


class WriterDouble:
    """tensorboardX's SummaryWriter, as far as transformers uses it."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.scalars: dict[tuple[str, int], float] = {}
        WRITERS.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name, step] = value

    def add_text(self, *_: object) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


WRITERS: list[WriterDouble] = []


def test_a_tracker_is_told_each_steps_metrics(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("tensorboardX")
    package.__spec__ = importlib.machinery.ModuleSpec("tensorboardX", None)
    package.SummaryWriter = WriterDouble  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    WRITERS.clear()
    work.train("optimizer.max_steps=2", 'report_to=["tensorboard"]')
    (writer,) = WRITERS
    assert writer.log_dir == str(work.run_dir / "tensorboard")
    assert {("train/reward", 1), ("train/reward", 2)} <= writer.scalars.keys()


def test_a_tracker_with_tables_gets_each_steps_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, pd.DataFrame]] = []
    package = ModuleType("trackio")
    package.Table = lambda dataframe: dataframe  # type: ignore[attr-defined]
    package.log = logged.append  # type: ignore[attr-defined]
    records = TokenRecords(tmp_path)

    def with_legal_replies(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        parts = [[(0, float(number % 2), 0.0, 0.0)] for number in range(len(prompts))]
        return rollout(prompts, trainer) | {"episode": [{"task": "t", "parts": p} for p in parts]}

    trainer = make_trainer(tmp_path, with_legal_replies, credit="episode", tokens=records)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    trainer.compute_loss(trainer.model, output)
    tables = CompletionsTable(records, ["tensorboard", "trackio"])
    monkeypatch.setitem(sys.modules, "trackio", package)
    for step in (1, 2):  # of the second there is no record
        state = TrainerState(global_step=step, is_world_process_zero=True)
        tables.on_log(trainer.args, state, TrainerControl(), {"reward": 0.5})
    (table,) = (each["completions"] for each in logged)
    assert list(table["step"]) == [1] * 4
    assert list(table["reward"]) == [0.0, 1.0, 0.0, 1.0]
    assert list(table["advantage"] > 0) == [False, True, False, True]
    assert len(set(table["completion"])) == 1, "sampled rows alone"


def test_one_that_is_not_installed_is_refused_before_anything_is_done(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"report_to names wandb, .* not installed"):
        work.train('report_to=["wandb"]')
    assert not work.run_dir.exists()
