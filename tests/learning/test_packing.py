"""Dealing a step's trees into passes by a budget of tokens."""

import math
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recorded_steps import ScriptedSampler, call, duel_source, duels, goofspiel, record
from miner.background_loop import BackgroundLoop
from miner.learning.forest import Tree, grow
from miner.learning.packing import (
    exactly,
    few_passes,
    over_passes,
    padded_tokens,
    shared_out,
    tokens_in_line,
)
from tests.base_models.families import FAMILIES


def tree(tokens, row=0):
    """A path."""
    ends, reads = np.full(tokens, tokens), [np.array([tokens - 1])]
    return Tree(np.zeros(tokens, int), np.arange(tokens), ends, [row], reads)


SIZES = st.lists(st.integers(3, 60), min_size=1, max_size=20)
BUDGETS = st.integers(1, 1500)
LAYOUTS = st.sampled_from([tokens_in_line, padded_tokens])


def trees_of(sizes):
    return [tree(size, row=number) for number, size in enumerate(sizes)]


def fewest_rectangles(trees, budget):
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


def check_partition(passes, trees, budget, size):
    rows = sorted(tree.rows[0] for one in passes for tree in one)
    assert rows == list(range(len(trees)))
    assert all(len(one) <= 1 or size(one) <= budget for one in passes)


@given(SIZES, BUDGETS, LAYOUTS)
def test_every_tree_once_within_the_budget_in_few_passes(sizes, budget, size):
    trees = trees_of(sizes)
    passes = few_passes(trees, budget, size)
    assert all(passes)
    check_partition(passes, trees, budget, size)
    if size is padded_tokens:
        assert len(passes) == fewest_rectangles(trees, budget)
    else:  # no pass has room for a tree of a smaller one
        assert all(size([*a, *b]) > budget for a, b in combinations(passes, 2))
    largest = [size(one) for one in passes]
    assert largest == sorted(largest, reverse=True)


@given(SIZES, BUDGETS, LAYOUTS, st.data())
def test_any_larger_number_of_passes_empty_ones_beyond_one_per_tree(sizes, budget, size, data):
    trees = trees_of(sizes)
    fewest = few_passes(trees, budget, size)
    count = data.draw(st.integers(len(fewest), len(trees) + 5))
    passes = exactly(count, fewest, size)
    assert len(passes) == count
    loads = [size(trees) if trees else 0 for trees in passes]
    assert loads == sorted(loads, reverse=True)  # all processes begin with their largest
    assert sum(map(bool, passes)) == min(count, len(trees))
    check_partition(passes, trees, budget, size)


def test_the_largest_pass_is_halved_by_its_tokens():
    (whole,) = few_passes(trees_of([40, 20, 10, 10]), 80, tokens_in_line)
    halves = exactly(2, [whole], tokens_in_line)
    assert [tokens_in_line(half) for half in halves] == [40, 40]


@pytest.fixture(scope="module")
def recorded():
    """Rows of a step of Goofspiel and of one of duels, without those of most turns."""
    tokenizer = FAMILIES[1].tokenizer()
    tasks = [task for task in duels() if "gin_rummy" not in task.environment]
    with BackgroundLoop() as loop:
        games = record("", duel_source(), tasks, ScriptedSampler(tokenizer, call), loop)
        return [goofspiel(tokenizer, loop).rows, games.rows]


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_processes_have_tokens_within_a_tenth_of_the_mean_on_recorded_steps(recorded, processes):
    for rows in recorded:
        shares = shared_out(lambda most, rows=rows: grow(rows, 8192, most), 8192, processes)
        assert sorted(row for share in shares for tree in share for row in tree.rows) == [*rows]
        tokens = [tokens_in_line(share) for share in shares]
        mean = sum(tokens) / processes
        assert all(0.9 * mean <= count <= 1.1 * mean for count in tokens)
        by_rows = sum(len(row.path) for row in rows.values())
        assert sum(tokens) < 0.9 * by_rows


def test_a_process_alone_gets_the_largest_trees(recorded):
    rows = recorded[0]
    (share,) = shared_out(lambda most: grow(rows, 8192, most), 8192, 1)
    assert tokens_in_line(share) == tokens_in_line(grow(rows, 8192))


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
