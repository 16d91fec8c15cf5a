"""`python -m miner train` as a person or a container runs it: learning, resuming, ending."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from miner.publishing.best import BestModel, Evaluated
from miner.publishing.deadline import Deadline
from miner.publishing.merge import write_trained_model
from miner.publishing.publisher import PUBLICATION_FILE, Publisher
from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from mock_env_server.running import running_server
from tests.deepspeed_here import deepspeed_file, needs_deepspeed
from tests.training.commands import miner, places

pytestmark = [
    pytest.mark.timeout(900),  # slow shared machines: training runs for real here
    pytest.mark.long,
]

SMALL = [
    "environment.deck_sizes=[8]",
    "rollout.groups_per_step=8",
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule=constant",
    "evaluation.episodes=20",
    "evaluation.every_steps=8",
    "threads=1",
]


def test_the_reward_rises_through_the_servers_own_games(tmp_path, rough_base):
    """Graded episodes on a true-to-life server: the reward rises, the best is published."""
    with running_server("faithful") as server:
        done = miner(
            "train",
            *places(tmp_path, rough_base),
            *SMALL,
            "optimizer.max_steps=20",
            ENVIRONMENT_SERVER_URLS=server.base_url,
        )
    assert done.returncode == 0, done.stderr
    assert "channel graded" in done.stdout
    steps = RunFolder(tmp_path / "run").read().steps
    assert [record.step for record in steps] == list(range(1, 21))
    assert {record.action_applied_rate for record in steps} == {1.0}
    first, last = steps[:4], steps[-8:]
    assert sum(s.reward for s in last) / 8 > sum(s.reward for s in first) / 4 + 0.02
    published = tmp_path / "out" / "task" / "repo"
    verify_model(published, load=True)
    AutoModelForCausalLM.from_pretrained(published)
    AutoTokenizer.from_pretrained(published)
    assert json.loads((tmp_path / "run" / "probe.json").read_text())["channel"] == "graded"


def test_a_killed_run_goes_on_where_it_was(tmp_path, rough_base):
    arguments = [
        *places(tmp_path, rough_base),
        *SMALL,
        "environment.channel=builtin",
        "checkpoint.every_steps=3",
        "optimizer.max_steps=7",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "miner", "train", *arguments], stdout=subprocess.DEVNULL
    )
    marker = tmp_path / "run" / "checkpoints" / "checkpoint-3" / "complete.json"
    while not marker.exists():
        assert process.poll() is None, "the run ended before its first checkpoint"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    verify_model(tmp_path / "out" / "task" / "repo", load=True)
    before = RunFolder(tmp_path / "run").steps.read()[0]

    again = miner("train", *arguments)
    assert again.returncode == 0, again.stderr
    after = RunFolder(tmp_path / "run").steps.read()[0][len(before) :]
    resumed_at = after[0].step
    assert 3 < resumed_at <= before[-1].step + 1
    assert [record.step for record in after] == list(range(resumed_at, 8))


def test_sigterm_ends_a_run_cleanly_after_the_step(tmp_path, rough_base):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "miner", "train"),
            *places(tmp_path, rough_base),
            *SMALL,
            "environment.channel=builtin",
            "optimizer.max_steps=1000",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    while "step 1/1000" not in (line := process.stdout.readline()):
        assert line, "the run ended before its first step"
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate()
    assert process.returncode == 0
    assert "published step" in rest
    verify_model(tmp_path / "out" / "task" / "repo", load=True)


def test_a_run_ends_before_the_kill(tmp_path, rough_base):
    """A kill so near that the reserve for the end leaves only a few seconds of training."""
    ends_at = time.time() + Deadline(0, started_at=0).reserve() + 12
    done = miner(
        "train",
        *places(tmp_path, rough_base),
        *SMALL,
        "environment.channel=builtin",
        "optimizer.max_steps=1000",
        f"deadline.ends_at={ends_at}",
    )
    assert done.returncode == 0, done.stderr
    assert time.time() < ends_at
    run = RunFolder(tmp_path / "run").read()
    assert 1 <= len(run.steps) < 1000
    assert run.evaluations[-1].step == run.steps[-1].step  # the last weights had their chance
    verify_model(tmp_path / "out" / "task" / "repo", load=True)


def until_checkpoint(tmp_path, step, arguments):
    """Train until this checkpoint is complete, then kill."""
    process = subprocess.Popen(
        [sys.executable, "-m", "miner", "train", *arguments], stdout=subprocess.DEVNULL
    )
    marker = tmp_path / "run" / "checkpoints" / f"checkpoint-{step}" / "complete.json"
    while not marker.exists():
        assert process.poll() is None, f"the run ended before checkpoint {step}"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_full_fine_tuning_goes_on_with_adapters(tmp_path, rough_base):
    """As the ladder's last rung does it, killed once more on the way."""
    arguments = [
        *places(tmp_path, rough_base),
        *SMALL,
        "environment.channel=builtin",
        "checkpoint.every_steps=3",
        "optimizer.max_steps=12",
    ]
    adapters = [*arguments, "model.tuning=lora", "optimizer.learning_rate=1e-2"]
    until_checkpoint(tmp_path, 3, arguments)
    base_scores = json.loads((tmp_path / "run" / "best.json").read_text())["base"]
    until_checkpoint(tmp_path, 9, adapters)
    done = miner("train", *adapters)
    assert done.returncode == 0, done.stderr
    steps = [record.step for record in RunFolder(tmp_path / "run").steps.read()[0]]
    assert set(steps) == set(range(1, 13))
    assert steps[-1] == 12
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["base"] == base_scores  # the base model's, and played once
    published = tmp_path / "out" / "task" / "repo"
    assert verify_model(published, load=True).loaded
    assert json.loads((published / PUBLICATION_FILE).read_text())["step"] == best["best"]["step"]


def test_adapters_are_trained_by_two_ranks_under_zero2_and_published_merged(tmp_path, rough_base):
    """The base is said to have lost every game, so that what was trained is published."""
    needs_deepspeed()
    published, run_dir = tmp_path / "out" / "task" / "repo", tmp_path / "run"
    published.parent.mkdir(parents=True)
    Publisher(published).publish_base(rough_base)
    run_dir.mkdir()
    lost = BestModel(Evaluated(0, (0.0,) * 20))
    (run_dir / "best.json").write_text(json.dumps(lost.state()))
    done = miner(
        *("train", "--processes", "2"),
        *places(tmp_path, rough_base),
        *SMALL,
        "environment.channel=builtin",
        "rollout.groups_per_step=2",
        "optimizer.micro_batch_tokens=1200",
        "optimizer.max_steps=2",
        f"optimizer.deepspeed={deepspeed_file(tmp_path, stage=2)}",
        "model.tuning=lora",
        "evaluation.every_steps=2",
        "checkpoint.every_steps=2",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((published / PUBLICATION_FILE).read_text())["step"] == 2
    assert verify_model(published, load=True).loaded
    merged = tmp_path / "merged"
    merged.mkdir()
    write_trained_model(rough_base, run_dir / "checkpoints" / "checkpoint-2", merged)
    weights, base = (load_file(at / "model.safetensors") for at in (published, rough_base))
    assert all(
        torch.equal(weights[n], t) for n, t in load_file(merged / "model.safetensors").items()
    )
    changed = {name for name, tensor in base.items() if not torch.equal(weights[name], tensor)}
    assert changed == {name for name in base if name.endswith("_proj.weight")}
