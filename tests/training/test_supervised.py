"""Supervised runs on recorded conversations: what is learned, published, and refused."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from entrypoint.exit_status import ExitStatus
from miner.config.contract import INTERCODE_DATASET, SWE_DATASET, dataset_folder
from miner.config.errors import ConfigurationError
from miner.evaluation.statistics import mean_score
from miner.publishing.best import Evaluated
from miner.publishing.gate import form_lost
from miner.publishing.output_path import PUBLICATION_FILE
from miner.recorded.conversations import read_conversations
from miner.recorded.rows import RecordedRows
from miner.reporting.run_folder import RunFolder
from miner.rollout.model_folder import load_model_folder
from tests.builders import build_tokenizer, save_base
from tests.recorded.made import intercode, swe_zero, write_rows
from tests.training.in_process import Work, build_guesser, working_in

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]
LEARNING = (
    "environment.channel=recorded",
    "optimizer.max_steps=6",
    "evaluation.every_steps=3",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A run on made rows, of which some are held out."""
    with working_in(tmp_path_factory.mktemp("supervised")) as work:
        folder = swe_zero(work.folder)
        work.train(*LEARNING, f"environment.datasets=['{folder}']")
        yield work


def scores(work: Work) -> dict[str, Evaluated]:
    """Of the base and of the published model."""
    found = json.loads((work.run_dir / "best.json").read_text())
    return {name: Evaluated(**found[name]) for name in ("base", "best")}


def test_held_out_conversations_become_likelier_and_the_model_is_published(work: Work) -> None:
    found = scores(work)
    assert found["best"].step == json.loads((work.published / PUBLICATION_FILE).read_text())["step"]
    assert found["best"].step > 0
    assert found["best"].mean > 3 * found["base"].mean
    assert work.steps == [1, 2, 3, 4, 5, 6]
    first = RunFolder(work.run_dir).read().evaluations[0]
    assert first.faults == {"0 blocks of bash": 8}
    assert first.score == mean_score(found["base"].scores, likelihoods=True)


def test_scores_are_geometric_means_of_the_recorded_tokens_probabilities(work: Work) -> None:
    loaded = load_model_folder(work.base, torch.float32)
    found = read_conversations((swe_zero(work.folder),))
    rows = RecordedRows(found, loaded.chat.renderer, "qwen25", 4096)
    expected = []
    for number in found.held_out:
        (row,) = rows.of(number)
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        with torch.no_grad():
            odds = loaded.model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
        said = odds.gather(-1, ids[0, 1:, None])[-len(row.completion_ids) :, 0]
        expected.append(said[torch.tensor(row.loss_mask).bool()].mean().exp().item())
    assert sorted(scores(work)["base"].scores) == pytest.approx(sorted(expected), rel=1e-3)


def test_the_gate_refuses_a_model_that_loses_the_form() -> None:
    def forfeiting(count: int) -> Evaluated:
        return Evaluated(0, (0.5,) * 100, (True,) * count + (False,) * (100 - count))

    names = ["recorded"] * 100
    assert form_lost(names, forfeiting(12), forfeiting(10), 0.1) == []
    assert form_lost(names, forfeiting(13), forfeiting(10), 0.1) == ["form"]


def test_nothing_to_learn_from_is_a_sentence(tmp_path: Path) -> None:
    with working_in(tmp_path) as work:
        folder = write_rows(tmp_path / "other--rows", [[{"role": "user", "content": "only"}]])
        with pytest.raises(
            ConfigurationError, match=r"nothing to learn from: .*other--rows"
        ) as found:
            work.train(*LEARNING, f"environment.datasets=['{folder}']")
        assert "1 for no reply of an assistant" in str(found.value)
        assert json.loads((work.published / PUBLICATION_FILE).read_text())["step"] == 0


def test_temperatures_and_credit_that_nothing_is_sampled_for_are_refused(tmp_path: Path) -> None:
    for wrong in ("rollout.temperature=0.5", "reward.credit=turn"):
        with pytest.raises(ConfigurationError, match="samples nothing in training"):
            Work(tmp_path).settings("environment.channel=recorded", wrong)


@pytest.mark.parametrize(
    ("task", "dataset"),
    [("swe_infinite", SWE_DATASET), ("swe_infinite", ""), ("intercode", INTERCODE_DATASET)],
)
def test_a_job_without_games_ends_with_what_could_be_had(
    tmp_path: Path, task: str, dataset: str
) -> None:
    """The container's whole program: rows are learned, or the log has what to request."""
    tokenizer = build_tokenizer()
    base = tmp_path / "cache/models/0123456789abcdef"
    save_base(base, build_guesser(tokenizer), tokenizer)
    swe_zero(tmp_path / "data")
    intercode(tmp_path / "data")
    output = tmp_path / "checkpoints"
    output.mkdir()
    data = {"MINER_DATASETS_DIR": str(tmp_path / "data"), "MINER_DATASETS": dataset}
    environ = {
        **os.environ,
        "MINER_CACHE_DIR": str(tmp_path / "cache"),
        "MINER_CHECKPOINTS_DIR": str(output),
        "ENVIRONMENT_SERVER_URLS": "",
        **(data if dataset else {}),
    }
    settings = ("max_steps=2", "learning_rate=1e-2", "decay_share=0.01", "warmup_steps=0")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "entrypoint", "--task-id", "task", "--gpus", "0"),
            *("--model", base.name, "--expected-repo-name", "repo", "--hours-to-complete", "2.5"),
            *("--dataset-type", json.dumps({"environment_names": [task]})),
            *(word for each in settings for word in ("--set", f"optimizer.{each}")),
            *("--set", "rollout.max_reply_tokens=4", "--set", "threads=1"),
        ],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitStatus.OK, ended.stdout + ended.stderr
    published = json.loads((output / "task/repo" / PUBLICATION_FILE).read_text())
    if dataset:
        assert published["step"] == 2
        assert math.isfinite(published["score"])
        assert f"supervised, from {dataset_folder(dataset)}" in ended.stdout
    else:
        assert published["step"] == 0
        assert f"learned from {SWE_DATASET} only: request it" in ended.stdout
