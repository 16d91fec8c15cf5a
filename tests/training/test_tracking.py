"""Trackers are told what a step was like, below the run's folder, or are refused by name."""

import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.config.errors import ConfigurationError
from miner.reporting.token_records import TokenRecords
from miner.training import preparation
from miner.training.completions_table import CompletionsTable
from tests.learning.test_trainer import make_trainer
from tests.training.in_process import Work
from tests.training.test_weighted_rows import rollout


@pytest.fixture(autouse=True)
def places_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", "WANDB_DIR", "WANDB_MODE"):
        monkeypatch.setenv(name, "")  # put back afterwards
        monkeypatch.delenv(name)


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


def test_a_tracker_gets_the_metrics_of_each_step(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("tensorboardX")
    package.__spec__ = importlib.machinery.ModuleSpec("tensorboardX", None)
    package.SummaryWriter = WriterDouble  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboardX", package)
    WRITERS.clear()
    work.train("optimizer.max_steps=2", 'report_to=["tensorboard"]')
    (writer,) = WRITERS
    assert writer.log_dir == str(work.run_dir / "tensorboard")
    assert {("train/reward", 1), ("train/reward", 2)} <= writer.scalars.keys()


@pytest.fixture
def recorded(tmp_path: Path) -> TokenRecords:
    """Records of a learned step of four episodes."""
    records = TokenRecords(tmp_path)

    def with_legal_replies(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        parts = [[(0, float(number % 2), 0.0)] for number in range(len(prompts))]
        return rollout(prompts, trainer) | {"episode": [{"task": "t", "parts": p} for p in parts]}

    trainer = make_trainer(tmp_path, with_legal_replies, credit="episode", tokens=records)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    trainer.compute_loss(trainer.model, output)
    return records


def tracked(
    records: TokenRecords, package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What a tracker is given of the step; its package is a double with the real one's API."""
    logged: list[dict[str, Any]] = []
    package.Table = lambda dataframe: dataframe  # type: ignore[attr-defined]
    package.log = logged.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    table = CompletionsTable(records, ["tensorboard", package.__name__], Path("/runs/report.html"))
    for step in (1, 2):  # of the second there is no record
        state = TrainerState(global_step=step, is_world_process_zero=True)
        table.on_log(TrainingArguments(), state, TrainerControl(), {"reward": 0.5})
    (one,) = logged
    return one


def test_trackio_gets_completions_as_a_table_and_episodes_as_traces(
    recorded: TokenRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("trackio")
    package.Trace = lambda messages, metadata: (messages, metadata)  # type: ignore[attr-defined]
    logged = tracked(recorded, package, monkeypatch)
    table = logged["completions"]
    assert list(table["step"]) == [1] * 4
    assert list(table["reward"]) == [0.0, 1.0, 0.0, 1.0]
    assert list(table["advantage"] > 0) == [False, True, False, True]
    assert len(set(table["completion"])) == 1, "sampled rows alone"
    assert logged["report"] == "/runs/report.html"
    assert [about["reward"] for _, about in logged["episodes"]] == [0.0, 1.0, 0.0, 1.0]
    (messages, _), *_ = logged["episodes"]
    asked, reply = messages[:2]
    assert (asked["role"], asked["content"]) == ("user", table["prompt"][0])
    assert reply["role"] == "assistant"
    assert "".join(each["content"] for each in messages[1:]) == table["completion"][0]


def test_wandb_gets_a_steps_episodes_as_one_tree(
    recorded: TokenRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = ModuleType("wandb.sdk.data_types.trace_tree")
    trees.Result = trees.Span = lambda **known: known  # type: ignore[attr-defined]
    trees.SpanKind = SimpleNamespace(LLM="LLM")  # type: ignore[attr-defined]
    trees.WBTraceTree = lambda root: root  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, trees.__name__, trees)
    logged = tracked(recorded, ModuleType("wandb"), monkeypatch)
    spans = logged["episodes"]["child_spans"]
    assert [span["attributes"]["reward"] for span in spans] == [0.0, 1.0, 0.0, 1.0]
    prompt, completion = (logged["completions"][name][0] for name in ("prompt", "completion"))
    assert spans[0]["results"][0]["inputs"] == {"user": prompt}
    reply = spans[0]["results"][0]["outputs"]["assistant"]
    assert reply
    assert completion.startswith(reply)


def test_one_that_is_not_installed_is_refused_before_anything_is_done(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"report_to names wandb, .* not installed"):
        work.train('report_to=["wandb"]')
    assert not work.run_dir.exists()
