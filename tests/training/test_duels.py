"""Training on duels, from a base that knows the form of a call to a model that plays the game."""

import json
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.tiny_base.build import DuelRecipe, build_duel_base
from miner.duel.tiny_base.tokenizer import duel_tokenizer
from miner.reporting.page import write_report
from miner.reporting.run_folder import RunFolder
from miner.training.preparation import prepare_run
from miner.training.run import train
from tests.training.commands import places

pytestmark = pytest.mark.long


def test_a_base_that_forfeits_learns_to_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base and trained model on the same held-out games, of which no game was trained on."""
    monkeypatch.chdir(tmp_path)  # the same sentences in a submission's checkout
    base = build_duel_base(tmp_path / "base", recipe=DuelRecipe(games=60, steps=100, batch=20))
    settings = Settings.load(
        None,
        [
            *places(tmp_path, base),
            "environment.channel=duel",
            'environment.games=["goofspiel"]',
            "environment.cards=[5]",
            'environment.opponents=["random"]',
            "rollout.groups_per_step=8",
            "rollout.group_size=8",
            "rollout.max_reply_tokens=8",
            "reward.invalid_reply_penalty=0.5",
            "optimizer.learning_rate=2e-3",
            "optimizer.decay_share=0.01",
            "optimizer.max_steps=12",
            "evaluation.episodes=80",
            "evaluation.every_steps=12",
            "threads=1",
        ],
        environ={},
    )
    prepare_run(settings, in_process=True)
    train(settings, Console(quiet=True), Ranks())

    scores = json.loads((tmp_path / "run" / "best.json").read_text())
    before, after = scores["base"]["scores"], scores["best"]["scores"]
    gains = [b - a for a, b in zip(before, after, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    assert statistics.mean(gains) > 4 * error
    run = RunFolder(tmp_path / "run").read()
    first, last = run.evaluations
    assert first.faults["illegal action"] > 2 * last.faults.get("illegal action", 0)
    assert run.probe["channel"] == "duel"
    page = write_report(tmp_path / "run").read_text()
    assert "illegal action" in page
    assert "best response" not in page  # of the servers' game


def test_what_shows_an_opponents_rule_are_single_tokens() -> None:
    tokenizer = duel_tokenizer(["Win sequence: 0 1 \n"], (5,))
    shown = tokenizer.tokenize("Win sequence: -3 -3 0 1 \n")
    assert [tokenizer.convert_tokens_to_string([token]) for token in shown] == [
        *("Win sequence:", " -3", " -3", " 0", " 1", " ", "\n")
    ]
