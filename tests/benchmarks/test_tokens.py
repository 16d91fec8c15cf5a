"""Counts of the benchmark of tokens, on a step that is made."""

import numpy as np

from benchmarks.recorded_steps import GROUP, Step
from benchmarks.tokens import counts
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
