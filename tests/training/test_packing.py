"""Cutting a batch into passes by a budget of tokens."""

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.training.packing import exactly, fewest_passes, longest_first, over_passes, padded_tokens

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=20)
BUDGETS = st.integers(1, 1500)


def cost(rows, lengths):
    return padded_tokens([lengths[row] for row in rows])


def fewest_by_search(lengths, budget):
    """The fewest passes over all cuts of the sorted rows."""
    order = longest_first(lengths)

    @cache
    def fewest(first):
        if first == len(order):
            return 0
        ends = range(first + 1, len(order) + 1)
        fitting = [e for e in ends if e == first + 1 or cost(order[first:e], lengths) <= budget]
        return 1 + min(fewest(end) for end in fitting)

    return fewest(0)


def check_partition(passes, lengths, budget):
    assert [row for rows in passes for row in rows] == longest_first(lengths)
    assert all(len(rows) <= 1 or cost(rows, lengths) <= budget for rows in passes)


def test_padding_counts_on_both_sides():
    assert padded_tokens([(10, 2), (3, 9)]) == 2 * (10 + 9)
    assert fewest_passes([(10, 2), (3, 9)], budget=24) == [[0], [1]]
    assert fewest_passes([(3, 9), (3, 9), (10, 20), (2, 4)], budget=30) == [[2], [0, 1], [3]]


@given(LENGTHS)
def test_rows_are_sorted_by_their_length(lengths):
    totals = [sum(lengths[row]) for row in longest_first(lengths)]
    assert totals == sorted(totals, reverse=True)


@given(LENGTHS, BUDGETS)
def test_every_row_once_within_the_budget_in_as_few_passes_as_possible(lengths, budget):
    passes = fewest_passes(lengths, budget)
    assert all(passes)
    check_partition(passes, lengths, budget)
    assert len(passes) == fewest_by_search(lengths, budget)


@given(LENGTHS, BUDGETS, st.data())
def test_any_larger_number_of_passes_empty_ones_beyond_one_per_row(lengths, budget, data):
    fewest = fewest_passes(lengths, budget)
    count = data.draw(st.integers(len(fewest), len(lengths) + 5))
    passes = exactly(count, fewest, lengths)
    assert len(passes) == count
    assert sum(map(bool, passes)) == min(count, len(lengths))
    check_partition(passes, lengths, budget)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_passes_than_there_are_is_refused(count):
    lengths = [(5, 5), (5, 5), (5, 5)]
    with pytest.raises(ValueError, match=f"cannot be made {count} passes: take 2 or more"):
        exactly(count, fewest_passes(lengths, budget=20), lengths)


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
