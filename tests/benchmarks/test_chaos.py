"""The chaos benchmark: its plans, its refusals, and its eye for rewards that were made up."""

from dataclasses import dataclass

import pytest

from benchmarks.chaos import FAULTS, draw_plan, parse, true_score
from miner.environments import EpisodeTask
from miner.environments.builtin import BuiltinSource


def test_a_seed_draws_the_same_faults_at_the_wanted_rate():
    plan = draw_plan(7, 2001, 0.1)
    assert plan == draw_plan(7, 2001, 0.1) != draw_plan(8, 2001, 0.1)
    assert 150 < len(plan) < 250
    assert set(plan.values()) == set(FAULTS)
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
        (["--seeds", "5", "--steps", "30"], "seed 5 draws no fault"),
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
