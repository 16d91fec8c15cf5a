"""Counts of the benchmark of tokens, on a step that is made."""

import numpy as np
import pytest

from benchmarks.recorded_steps import GROUP, Step
from benchmarks.tokens import counts, flat_share, with_advantage
from miner.learning.forest import Row


def made_step(groups: int, beginning: int = 10, end: int = 6) -> Step:
    """Groups of two environments: every row has a beginning of its environment and its own end."""
    rows = {}
    for number in range(groups * GROUP):
        own = np.arange(end) + 100 * (number + 1)
        ids = np.concatenate([np.full(beginning, number // GROUP % 2), own])
        rows[number] = Row(ids, np.array([beginning, beginning + end - 1]))
    environments = [f"game {group % 2}" for group in range(groups)]
    return Step("made", rows, list(range(len(rows))), environments, GROUP, 0, 0)


def test_tokens_by_rows_by_trees_and_in_one_tree() -> None:
    step = made_step(2)
    # the last token of a row is not computed
    assert step.tokens == 16 * 15
    assert counts(step.rows, 1000) == ["240", "100", "0.42", "0.42"]
    assert counts(step.rows, 32) == ["240", "120", "0.50", "0.42"]  # 4 rows a tree
    assert [len(rows) for rows in step.by_environment().values()] == [8, 8]
    assert counts(step.by_environment()["game 1"], 1000)[:2] == ["120", "50"]


def test_flat_groups_are_as_many_as_the_win_rate_makes() -> None:
    flat = flat_share(made_step(12, beginning=1, end=60), 1000, None, 500)
    expected = 0.9**GROUP + 0.1**GROUP
    assert flat.groups == pytest.approx(expected, abs=0.02)
    assert flat.rows == pytest.approx(expected, abs=0.02)
    assert flat.tokens == pytest.approx(1 - expected, abs=0.02)


def test_rows_of_flat_groups_are_left_out() -> None:
    step = made_step(12)
    share, left = with_advantage(step, 0)
    assert len(left) == round((1 - share) * 12) * GROUP
    assert {number // GROUP for number in left} < set(range(12))
