"""Counts of the benchmark of tokens, on a step that is made."""

import numpy as np

from benchmarks.recorded_steps import GROUP, Step
from benchmarks.tokens import counts
from miner.learning.forest import Row


def made_step() -> Step:
    """A group of each of two environments: every row has its environment's ten tokens first, and
    then six others."""
    rows = {}
    for number in range(2 * GROUP):
        ids = np.concatenate([np.full(10, number // GROUP), np.arange(6) + 100 * (number + 1)])
        rows[number] = Row(ids, np.array([10, 15]))
    return Step("made", rows, list(range(len(rows))), ["game 0", "game 1"], GROUP, 0, 0)


def test_tokens_by_rows_by_trees_and_in_one_tree() -> None:
    step = made_step()
    # the last token of a row is not computed
    assert step.tokens == 16 * 15
    assert counts(step.rows, 1000) == ["240", "100", "0.42", "0.42"]
    assert counts(step.rows, 32) == ["240", "120", "0.50", "0.42"]  # 4 rows a tree
    assert [len(rows) for rows in step.by_environment().values()] == [8, 8]
    assert counts(step.by_environment()["game 1"], 1000)[:2] == ["120", "50"]
