"""What the demo says before and while a person waits."""

import io
import os
import signal

import pytest
import requests
import torch
from rich.console import Console
from safetensors.torch import load_file

from miner.__main__ import main
from miner.cli import demo
from miner.cli.demo import WarmStartProgress, last_weights
from miner.cli.demo_replies import print_replies
from miner.cli.demo_shows import SHOWS, announce
from miner.config.errors import ConfigurationError
from tests.builders import build_qwen3, build_tokenizer
from tests.training.in_process import working_in


def log():
    file = io.StringIO()
    return file, Console(file=file, force_terminal=False, width=40)


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end():
    file, console = log()
    seconds = iter(range(0, 1000, 4))  # each look at the clock is 4 s later
    progress = WarmStartProgress(console, clock=lambda: float(next(seconds)))
    for step in range(1, 9):
        progress(step, 8, 0.5)
    assert file.getvalue().splitlines() == [
        "warm start 3/8 loss 0.50 eta 0:00:20",
        "warm start 6/8 loss 0.50 eta 0:00:08",
        "warm start 8/8 loss 0.50 eta 0:00:00",
    ]


def test_the_time_it_takes_is_said_at_the_start():
    file, console = log()
    announce(console, SHOWS["tiny", "8"], 240.0, base_is_there=False)
    assert file.getvalue() == (
        "expect 6 to 9 minutes: the base model 1 to 2.5 (kept for next time), training 4.0, "
        "all else 1 to 2\n"
    )
    file, console = log()
    announce(console, SHOWS["tiny", "all"], 660.0, base_is_there=True)
    assert file.getvalue() == (
        "expect 12 to 13 minutes: the base model is there already, training 11.0, all else 1 to 2\n"
    )
    file, console = log()
    announce(console, SHOWS["smollm2", "8"], 1500.0, base_is_there=False)
    assert file.getvalue().startswith("expect 31 to 44 minutes: the base model 0.5 to 1 (kept")


def test_the_real_model_learns_the_smallest_deck_only(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["miner", "demo", "--model", "smollm2", "--sizes", "all"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
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
    monkeypatch.setattr("sys.argv", ["miner", "demo", "--out", str(tmp_path)])
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + signal.SIGTERM
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{played[0]}/health", timeout=30)
    assert signal.getsignal(signal.SIGTERM) == before


def test_replies_before_and_after_stand_side_by_side(tmp_path):
    for name, seed in (("base", 0), ("trained", 1)):
        build_qwen3(seed=seed, max_position_embeddings=4096).save_pretrained(tmp_path / name)
        build_tokenizer().save_pretrained(tmp_path / name)
    file = io.StringIO()
    console = Console(file=file, width=300)
    print_replies(tmp_path / "base", tmp_path / "trained", 0.6, console)
    shown = file.getvalue()
    assert "after, at temperature 0.6" in shown
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
