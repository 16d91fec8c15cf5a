"""The chaos benchmark: its plans, its refusals, and its eye for rewards that were made up."""

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import chaos
from benchmarks.chaos import DISK_FULL, FAULTS, draw_plan, kill_publishers, parse
from benchmarks.chaos_trainer import true_score
from miner.environments import EpisodeTask
from miner.environments.builtin import BuiltinSource
from tests.publishing.conftest import build_model


def test_a_seed_draws_the_same_faults_at_the_wanted_rate():
    plan = draw_plan(7, 2001, 0.1)
    assert plan == draw_plan(7, 2001, 0.1) != draw_plan(8, 2001, 0.1)
    assert len(plan) == 200
    assert 1 <= min(plan) < max(plan) <= 2000
    counts = Counter(plan.values())
    assert set(counts) == set(FAULTS)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert set(draw_plan(7, 2001, 0.1, ["server_slow"]).values()) == {"server_slow"}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--fraction", "0"], "--fraction 0.0: expected more than 0"),
        (["--fraction", "1.5"], "at most 1"),
        (["--fraction", "nan"], "--fraction nan"),
        (["--seeds", "-1"], "different numbers from 0 on"),
        (["--seeds", "3", "3"], "different numbers"),
        (["--seeds", "x"], "invalid int"),
        (["--steps", "1"], "expected 2 to 10,000"),
        (["--faults", "flood"], "invalid choice: 'flood'"),
        (["--steps", "30", "--fraction", "0.01"], "seed 0 draws no fault"),
        (["--groups", "3"], "--groups 3: expected an even number from 2 to 256"),
        (["--kills", "-3"], "--kills -3: expected 0 to 100,000"),
        (["--vllm", "no/vllm"], "--vllm no/vllm is no program"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, fault, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        parse([*arguments, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert fault in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_results_of_another_run_are_not_mixed_in(tmp_path, capsys):
    (tmp_path / "0").mkdir()
    with pytest.raises(SystemExit):
        parse(["--out", str(tmp_path), "--fraction", "0.5"])
    assert "is there already" in capsys.readouterr().err


@dataclass
class Turn:
    reply: str


@dataclass
class Played:
    task: EpisodeTask
    turns: list[Turn]


async def test_the_true_score_is_what_the_rules_give():
    """Bids in ascending order, against the same opponent, in a game of eight cards."""
    task = EpisodeTask("goofspiel", 0, 3)
    environment = BuiltinSource({}).open()
    await environment.reset(task)
    replies, score = [], None
    while score is None:
        replies.append(Turn(str(len(replies))))
        score = (await environment.step(replies[-1].reply)).score
    assert await true_score(Played(task, replies)) == score
    assert await true_score(Played(task, replies[:-1])) is None
    assert await true_score(Played(task, [Turn("no number")] * 3)) == 0.0


def test_without_the_right_to_mount_the_full_disk_is_left_out_with_a_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(chaos, "may_mount", lambda: False)
    out = ["--out", str(tmp_path / "out")]
    assert DISK_FULL not in parse(out).faults
    assert f"{DISK_FULL} is left out: no tmpfs may be mounted here" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["--faults", DISK_FULL, *out])


def test_a_killed_publisher_leaves_a_model_and_a_broken_one_is_counted(tmp_path, monkeypatch):
    base = build_model(tmp_path / "base", seed=0)
    assert kill_publishers(tmp_path / "sound", base, 3, seed=0) == 0

    def loop(published: Path, models: list[Path]) -> None:
        published.mkdir(parents=True)
        (published / "config.json").write_text("{")
        print("ready", flush=True)
        threading.Event().wait()

    monkeypatch.setattr("tests.publishing.killed_publisher.loop", loop)
    assert kill_publishers(tmp_path / "broken", base, 1, seed=0) == 1
