"""Output of the demo before and while the user waits."""

import io
import os
import signal

import pytest
import requests
import torch
from rich.console import Console
from safetensors.torch import load_file

from miner.cli import demo
from miner.cli.demo import last_weights
from miner.cli.demo_replies import print_replies
from miner.cli.demo_shows import SHOWS
from miner.config.errors import ConfigurationError
from tests.builders import build_qwen3, save_base
from tests.commands import status_of
from tests.training.in_process import working_in


@pytest.mark.parametrize(
    ("show", "seconds", "sentence"),
    [
        (("tiny", "8"), 225.0, "expect 5 to 9 minutes: training 3.8, all else 2 to 5"),
        (("smollm2", "8"), 1500.0, "expect 32 to 44 minutes: training 25.0, all else 7 to 19"),
    ],
)
def test_the_time_it_takes_is_known_at_the_start(show, seconds, sentence):
    assert SHOWS[show].expected(seconds).startswith(sentence)


def test_the_real_model_learns_the_smallest_deck_only(capsys):
    assert status_of("demo", "--model", "smollm2", "--sizes", "all") == 2
    assert "leave --sizes all out" in capsys.readouterr().err


def test_a_demo_that_is_ended_takes_its_servers_along(tmp_path, monkeypatch):
    played = []

    def train(config, overrides, environ):
        played.append(environ["ENVIRONMENT_SERVER_URLS"])
        assert requests.get(f"{played[0]}/health", timeout=30).ok
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(demo, "_base_model", lambda *_: tmp_path)
    monkeypatch.setattr(demo, "SERVERS", 1)
    monkeypatch.setattr(demo, "train", train)
    before = signal.getsignal(signal.SIGTERM)
    assert status_of("demo", "--out", tmp_path) == 128 + signal.SIGTERM
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{played[0]}/health", timeout=30)
    assert signal.getsignal(signal.SIGTERM) == before


def test_replies_before_and_after_are_side_by_side(tmp_path):
    for name, seed in (("base", 0), ("trained", 1)):
        save_base(tmp_path / name, build_qwen3(seed=seed, max_position_embeddings=4096))
    file = io.StringIO()
    console = Console(file=file, width=300)
    print_replies(tmp_path / "base", tmp_path / "trained", console)
    shown = file.getvalue()
    assert "after, sampled" in shown
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if "Current point card:" in line]
    assert len(rows) == 3
    assert all(before != after for _, before, _, after, _ in rows)


def test_what_was_learned_is_compared_whether_or_not_it_was_published(tmp_path):
    with working_in(tmp_path) as work:
        with pytest.raises(ConfigurationError, match="more --seconds"):
            last_weights(work.base, work.run_dir)
        work.train("optimizer.max_steps=1", "checkpoint.every_steps=1")
        last = load_file(last_weights(work.base, work.run_dir) / "model.safetensors")
        base = load_file(work.base / "model.safetensors")
    assert last.keys() == base.keys()
    assert any(not torch.equal(last[name], base[name]) for name in base)
