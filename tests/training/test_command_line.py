"""`python -m miner train` as a person or a container runs it: learning, resuming, bad input."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from miner.publishing.verify import verify_model
from miner.reporting.run_folder import RunFolder
from mock_env_server.running import running_server
from tests.builders import build_qwen3, build_tokenizer

pytestmark = pytest.mark.timeout(900)  # slow shared machines: training runs for real here

SMALL = [
    "environment.deck_sizes=[8]",
    "rollout.groups_per_step=8",
    "optimizer.learning_rate=1e-3",
    "optimizer.schedule=constant",
    "evaluation.episodes=20",
    "evaluation.every_steps=8",
    "threads=1",
]


def miner(*arguments, **environ):
    """Run the command line to its end; servers only if they are named."""
    clean = {k: v for k, v in os.environ.items() if k != "ENVIRONMENT_SERVER_URLS"}
    return subprocess.run(
        [sys.executable, "-m", "miner", *arguments],
        env=clean | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def places(tmp_path, base):
    return [
        f"model.path={base}",
        f"output.dir={tmp_path / 'out' / 'task' / 'repo'}",
        f"run_dir={tmp_path / 'run'}",
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
        "optimizer.max_steps=10",
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
    assert [record.step for record in after] == list(range(resumed_at, 11))


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


@pytest.fixture
def chatless(tmp_path):
    folder = tmp_path / "chatless"
    build_qwen3().save_pretrained(folder)
    build_tokenizer(chat_template=None).save_pretrained(folder)
    return folder


def refused(tmp_path, arguments, status, *words, **environ):
    done = miner("train", *arguments, **environ)
    assert done.returncode == status, done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    for word in words:
        assert word in sentence
    assert "Traceback" not in done.stderr
    out = tmp_path / "out"
    assert not out.exists() or not any(p.name.startswith(".repo.st") for p in out.rglob("*"))
    return done


def test_no_server_is_refused(tmp_path, rough_base):
    refused(tmp_path, places(tmp_path, rough_base), 2, "ENVIRONMENT_SERVER_URLS", "channel=builtin")


def test_a_wrong_url_is_refused(tmp_path, rough_base):
    refused(
        tmp_path,
        places(tmp_path, rough_base),
        2,
        "localhost:8000",
        ENVIRONMENT_SERVER_URLS="localhost:8000",
    )


def test_a_missing_model_is_refused(tmp_path):
    refused(tmp_path, places(tmp_path, tmp_path / "absent"), 2, "absent", "model.path")


def test_a_tokenizer_without_chat_template_is_refused(tmp_path, chatless):
    arguments = [*places(tmp_path, chatless), "environment.channel=builtin"]
    refused(tmp_path, arguments, 2, "chat template")
    assert not (tmp_path / "out").exists()


def test_a_misspelt_setting_is_refused(tmp_path, rough_base):
    arguments = [*places(tmp_path, rough_base), "rollout.grop_size=4"]
    refused(tmp_path, arguments, 2, "rollout.grop_size", "rollout.group_size")
    assert not (tmp_path / "out").exists()


def test_dry_run_prints_settings_and_does_nothing(tmp_path):
    done = miner("train", "--dry-run", f"run_dir={tmp_path / 'run'}", "seed=5")
    assert done.returncode == 0
    assert "seed = 5" in done.stdout
    assert not (tmp_path / "run").exists()
