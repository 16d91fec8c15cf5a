"""Cutting a step's trees into passes by a budget of tokens."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.training.forest import Tree
from miner.training.packing import exactly, fewest_passes, over_passes, padded_tokens


def tree(tokens, branched=False, row=0):
    """A path, or two paths that fork after the first token."""
    ends = np.full(tokens, tokens)
    if branched:
        ends[1] = 2
    return Tree(np.zeros(tokens, int), np.arange(tokens), ends, [row], [np.array([tokens - 1])])


SIZES = st.lists(st.tuples(st.integers(3, 60), st.booleans()), min_size=1, max_size=20)
BUDGETS = st.integers(1, 1500)


def trees_of(sizes):
    return [tree(*size, row=number) for number, size in enumerate(sizes)]


def fewest_by_search(trees, budget):
    """The fewest passes over all cuts of the sorted trees."""
    order = sorted(trees, key=lambda tree: -tree.tokens)

    @cache
    def fewest(first):
        if first == len(order):
            return 0
        ends = range(first + 1, len(order) + 1)
        fitting = [e for e in ends if e == first + 1 or padded_tokens(order[first:e]) <= budget]
        return 1 + min(fewest(end) for end in fitting)

    return fewest(0)


def check_partition(passes, trees, budget):
    rows = sorted(tree.rows[0] for one in passes for tree in one)
    assert rows == list(range(len(trees)))
    assert all(len(one) <= 1 or padded_tokens(one) <= budget for one in passes)
    assert all(len({tree.branched for tree in one}) <= 1 for one in passes)


@given(SIZES, BUDGETS)
def test_every_tree_once_within_the_budget_in_as_few_passes_as_possible(sizes, budget):
    trees = trees_of(sizes)
    passes = fewest_passes(trees, budget)
    assert all(passes)
    check_partition(passes, trees, budget)
    kinds = [[tree for tree in trees if tree.branched == branched] for branched in (False, True)]
    assert len(passes) == sum(fewest_by_search(kind, budget) for kind in kinds)
    largest = [padded_tokens(one) for one in passes]
    assert largest == sorted(largest, reverse=True)


@given(SIZES, BUDGETS, st.data())
def test_any_larger_number_of_passes_empty_ones_beyond_one_per_tree(sizes, budget, data):
    trees = trees_of(sizes)
    fewest = fewest_passes(trees, budget)
    count = data.draw(st.integers(len(fewest), len(trees) + 5))
    passes = exactly(count, fewest)
    assert len(passes) == count
    assert sum(map(bool, passes)) == min(count, len(trees))
    check_partition(passes, trees, budget)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_passes_than_there_are_is_refused(count):
    passes = fewest_passes([tree(10), tree(10), tree(10)], budget=20)
    with pytest.raises(ValueError, match=f"2 passes cannot be made {count} passes: take 2 or more"):
        exactly(count, passes)


@pytest.mark.parametrize(
    ("name", "values", "tokens", "joined"),
    [
        ("entropy", [1.0, 4.0], [3, 1], 1.75),
        ("entropy", [math.nan, 4.0], [3, 1], 4.0),
        ("clip_ratio/low_min", [0.5, 0.25, math.nan], [1, 9, 9], 0.25),
        ("clip_ratio/high_max", [0.5, 0.25], [1, 9], 0.5),
        ("kl", [math.nan], [0], math.nan),
        ("kl", [0.0, 0.0], [0, 0], math.nan),
    ],
)
def test_a_metric_of_all_passes(name, values, tokens, joined):
    assert over_passes(name, values, tokens) == pytest.approx(joined, nan_ok=True)
