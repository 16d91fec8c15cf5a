"""Going back to better weights in a run that learns targets: only to ones that were as near."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.config.run_files import REVERT_FILE
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.publishing.best import Evaluated
from miner.training import revert
from miner.training import run as training
from miner.training.revert import Kept
from tests.training.in_process import Work
from tests.training.test_revert import BASE, LOW, make_revert, rates, train


@pytest.mark.parametrize(
    ("apart", "rate"), [(-1e9, 1), (1e9, 0.5)], ids=["much nearer", "not nearer"]
)
def test_a_run_that_learns_targets_compares_what_it_has_logged(
    work: Work, monkeypatch: pytest.MonkeyPatch, apart: float, rate: float
) -> None:
    monkeypatch.setattr(revert, "NATS_APART", apart)
    train(
        work,
        monkeypatch,
        [BASE, LOW, LOW],
        *("reward.credit=all_moves", "optimizer.max_steps=4"),
    )
    assert rates(work) == pytest.approx([1, 1, rate, rate])


FAR = [38.0, 42.0, 47.0, 42.0, 30.0]


@pytest.mark.parametrize(
    ("distances", "best", "reverted"),
    [
        ([*FAR, 20.0, 10.0, 5.0, 4.0, 3.4], 0, False),
        ([*FAR, *[0.6] * 20], 0, False),  # a plateau
        ([*FAR, *[0.6] * 5, *["over"] * 20], 0, False),  # the base has learned no target
        ([*FAR, *[None] * 3, *[0.6] * 20], 0, False),  # steps that were not finite
        ([*FAR, *[0.6] * 20], 10, True),
        ([*FAR, *[0.6] * 20, *["over"] * 20], 10, True),
        ([*FAR, *[0.6] * 20, *["over"] * 20], 30, True),
        ([*FAR, *[0.6] * 10, *[9.0] * 5], 10, True),
        (FAR[:3], 0, True),
        ([], 0, True),
    ],
)
def test_no_weights_return_that_were_farther_from_the_targets(
    tmp_path: Path, distances: list[Any], best: int, reverted: bool
) -> None:
    logs: list[dict[str, float]] = [
        {"step": step} | ({} if distance == "over" else {"target_kl": distance})
        for step, distance in enumerate(distances, 1)
    ]
    args, said = TrainingArguments(str(tmp_path)), []
    trainer = SimpleNamespace(halvings=0, begin_again=said.append)
    kept = Kept(best, 100.0) if best else None
    weights = SimpleNamespace(put_back=lambda: best, kept=lambda: kept)
    state = TrainerState(global_step=2, log_history=logs)
    for targets, expected in ((True, [1] * reverted), (False, [1])):
        way_back = make_revert(tmp_path, Ranks(), trainer, weights, print, targets=targets)
        way_back._held_out.highest = Evaluated(best, (1.0,))
        said.clear()
        way_back.on_step_end(args, state, TrainerControl())
        assert said == expected, targets


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward.credit=all_moves"], True),
        (["reward.credit=episode"], False),
        (["reward.credit=all_moves", "environment.channel=duel"], True),
        (["reward.credit=all_moves", "environment.channel=duel", "demonstrations.share=0.9"], True),
    ],
)
def test_distances_are_compared_where_targets_are_learned(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], expected: bool
) -> None:
    class Stop(Exception):
        """The way back was made."""

    def made(*parts: object, targets: bool, **others: object) -> None:
        raise Stop(targets)

    monkeypatch.setattr(training, "RevertToBest", made)
    for part in ("RunDisk", "Checkpoints", "BestWeights"):
        monkeypatch.setattr(training, part, MagicMock())
    monkeypatch.setattr(training, "checked_paths", lambda settings: (Path(), Path()))
    monkeypatch.setattr(training, "checkpoint_bytes", lambda model, zero: 0)
    run = MagicMock(settings=Settings.load(None, overrides, environ={}))
    with pytest.raises(Stop) as stopped:
        training._add_callbacks(run, MagicMock(), MagicMock())
    assert stopped.value.args == (expected,)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(("first", "reverted"), [(5.0, False), (0.6, True)])
def test_weights_that_a_restart_began_with_are_measured_by_its_own_first_steps(
    tmp_path: Path, first: float, reverted: bool, resumed: bool
) -> None:
    """Their step, 40, was counted before it; here 20 steps have been made."""
    logs = [{"step": n + 1, "target_kl": first if n < 5 else 0.6} for n in range(20)]
    args, said = TrainingArguments(str(tmp_path)), []
    trainer = SimpleNamespace(halvings=0, begin_again=said.append)
    weights = SimpleNamespace(put_back=lambda: 40, kept=lambda: Kept(40, 100.0))
    way_back = make_revert(tmp_path, Ranks(), trainer, weights, print, targets=True)
    way_back._held_out.highest = Evaluated(40, (1.0,))
    way_back.on_train_begin(args, TrainerState(global_step=0), TrainerControl())
    if resumed:  # from a checkpoint that was saved since
        trainer.halve_to = said.append
        way_back = make_revert(tmp_path, Ranks(), trainer, weights, print, targets=True)
        way_back._held_out.highest = Evaluated(40, (1.0,))
        way_back.on_train_begin(args, TrainerState(global_step=1), TrainerControl())
    said.clear()
    state = TrainerState(global_step=2, log_history=logs)
    way_back.on_step_end(args, state, TrainerControl())
    assert said == [1] * reverted


def test_weights_that_are_higher_have_a_step_of_this_run(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path))
    trainer = SimpleNamespace(halvings=0, begin_again=print)
    weights = SimpleNamespace(put_back=lambda: 40, kept=lambda: Kept(40, 100.0), keep=print)
    way_back = make_revert(tmp_path, Ranks(), trainer, weights, print, targets=True)
    way_back.on_train_begin(args, TrainerState(global_step=0), TrainerControl())
    record = tmp_path / REVERT_FILE
    assert json.loads(record.read_text()) == {"step": 1, "halvings": 0, "from_before": True}
    way_back.on_step_end(args, TrainerState(global_step=1), TrainerControl())  # it rose
    assert json.loads(record.read_text()) == {"step": 1, "halvings": 0}
