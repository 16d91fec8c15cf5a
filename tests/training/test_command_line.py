"""`python -m miner train` as a person or a container runs it: resuming, ending."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import miner.__main__
from miner.config.run_files import newest_checkpoint
from miner.learning import schedule
from miner.learning.learner import write_checkpoint_model
from miner.publishing.best import BestModel, Evaluated
from miner.publishing.output_path import PUBLICATION_FILE
from miner.publishing.publisher import Publisher
from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from miner.reporting.token_records import TokenRecords
from miner.training import run
from tests.builders import build_tokenizer, save_base
from tests.conftest import REPOSITORY
from tests.deepspeed_here import needs_deepspeed
from tests.processes import Forked, start_miner
from tests.training.commands import places
from tests.training.in_process import TINY, build_guesser

pytestmark = pytest.mark.long

ANY_IS_PUBLISHED = """
from miner.publishing.best import BestModel
BestModel.replaced_by = lambda *_: True
"""
SMALL = [*TINY, "evaluation.episodes=20", "evaluation.every_steps=8"]


@pytest.fixture
def base(tmp_path):
    tokenizer = build_tokenizer()
    return save_base(tmp_path / "base", build_guesser(tokenizer), tokenizer)


@pytest.fixture
def start(tmp_path):
    """Start the command line with these arguments."""
    started = []

    def start(*arguments, **environ):
        started.append(start_miner(tmp_path, "train", *arguments, **environ))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def steps_of(tmp_path):
    return [record.step for record in RunFolder(tmp_path / "run").steps.read()[0]]


def kill_at_checkpoint(process, tmp_path, step):
    """Kill it once this checkpoint is complete, or a later one, which takes its place."""
    folder = tmp_path / "run" / "checkpoints"
    process.wait_until(lambda: (newest := newest_checkpoint(folder)) and newest.step >= step)
    process.kill()


def test_one_run_continues_through_a_kill_and_a_stop(tmp_path, base, start):
    """Each start goes on from the last checkpoint; the model at the output path is always whole."""
    published = tmp_path / "out" / "task" / "repo"
    arguments = [
        *places(tmp_path, base),
        *SMALL,
        "checkpoint.every_steps=3",
        "optimizer.max_steps=20",
    ]
    kill_at_checkpoint(start(*arguments), tmp_path, 3)
    verify_model(published, load=True)
    base_scores = json.loads((tmp_path / "run" / "best.json").read_text())["base"]
    killed = steps_of(tmp_path)
    assert killed[:3] == [1, 2, 3]

    resumed = start(*arguments)
    resumed.wait_until(lambda: len(steps_of(tmp_path)) > len(killed) + 1)
    resumed.send_signal(signal.SIGTERM)
    assert resumed.returncode == 0, resumed.stderr
    assert "published step" in resumed.stdout
    verify_model(published, load=True)
    after = steps_of(tmp_path)[len(killed) :]
    assert 3 < after[0] <= killed[-1] + 1
    assert after == list(range(after[0], after[-1] + 1))

    stopped_at = after[-1]
    last = start(*arguments)
    assert last.returncode == 0, last.stderr
    steps = steps_of(tmp_path)
    assert steps[len(killed) + len(after)] == stopped_at + 1  # what SIGTERM ended was kept
    assert set(steps) == set(range(1, 21))
    assert steps[-1] == 20
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["base"] == base_scores  # the base model's, and played once
    assert verify_model(published, load=True).loaded
    assert json.loads((published / PUBLICATION_FILE).read_text())["step"] == best["best"]["step"]


def train_for_a_quarter_of_an_hour(*arguments):
    """The command line, in a world where time is 0 and nothing takes any but steps: a minute."""
    steps = []

    def clock():
        return 60.0 * len(steps)

    class PaceOfSteps(schedule.Schedule):
        def __init__(self, *given, **named):
            super().__init__(*given, **named, clock=clock)

        def on_step_end(self, *state, **more):
            steps.append(1)
            super().on_step_end(*state, **more)

    run.Schedule = PaceOfSteps
    schedule.time = SimpleNamespace(time=lambda: 0.0)
    sys.argv = ["miner", *arguments, "deadline.ends_at=900"]
    miner.__main__.main()


def test_a_run_ends_before_the_kill(tmp_path, base):
    """Of fifteen minutes one is kept free for the end, one more for a slower step.

    The base's evaluation and publication took no time, so that none is kept for the last ones.
    """
    process = Forked(
        tmp_path,
        train_for_a_quarter_of_an_hour,
        "train",
        *places(tmp_path, base),
        *SMALL,
        "optimizer.max_steps=1000",
    )
    assert process.returncode == 0, process.stderr
    last = RunFolder(tmp_path / "run").read()
    assert [record.step for record in last.steps] == list(range(1, 14))
    assert last.evaluations[-1].step == 13  # the last weights had their chance
    verify_model(tmp_path / "out" / "task" / "repo", load=True)


def process_of_rank(rank, parent):
    """The child of `parent` that was started as this rank."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in variables:
            return int(child)
    raise AssertionError(f"no child of {parent} is rank {rank}")


def test_two_ranks_under_zero2_stop_together_and_publish_adapters_merged(tmp_path, base, start):
    """A signal reaches one of them: both end and save, after the same step. No candidate is
    shown to be better in so few games, so that they are patched to publish any."""
    needs_deepspeed()
    published, run_dir = tmp_path / "out" / "task" / "repo", tmp_path / "run"
    published.parent.mkdir(parents=True)
    Publisher(published, in_process=True).publish_base(base)
    run_dir.mkdir()
    patched = tmp_path / "patched"
    patched.mkdir()
    (patched / "sitecustomize.py").write_text(ANY_IS_PUBLISHED)
    lost = BestModel(Evaluated(0, (0.0,) * 20))
    (run_dir / "best.json").write_text(json.dumps(lost.state()))
    process = start(
        *("--processes", "2"),
        *places(tmp_path, base),
        *SMALL,
        "optimizer.micro_batch_tokens=1200",
        "optimizer.max_steps=1000",
        "optimizer.zero_stage=2",
        "model.tuning=lora",
        "evaluation.every_steps=1000",
        "checkpoint.every_steps=1000",
        PYTHONPATH=f"{patched}:{REPOSITORY}",
    )
    process.wait_until(lambda: "step 2/1000" in process.stdout)
    os.kill(process_of_rank(1, process.pid), signal.SIGTERM)
    assert process.returncode == 0, process.stderr
    last = newest_checkpoint(run_dir / "checkpoints")
    assert last is not None
    assert last.step == steps_of(tmp_path)[-1] < 1000
    tokens = TokenRecords(run_dir)
    assert {len(tokens.of(step)) for step in tokens.steps()} == {2}, "parts of both ranks"
    assert json.loads((published / PUBLICATION_FILE).read_text())["step"] == last.step
    assert verify_model(published, load=True).loaded
    merged = tmp_path / "merged"
    merged.mkdir()
    write_checkpoint_model(base, last.path, merged)
    weights, before = (load_file(at / "model.safetensors") for at in (published, base))
    assert all(
        torch.equal(weights[n], t) for n, t in load_file(merged / "model.safetensors").items()
    )
    changed = {name for name, tensor in before.items() if not torch.equal(weights[name], tensor)}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
