"""Rows as trees: nothing lost, nothing twice, and what each token descends from."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.memory import largest_pass
from miner.learning.forest import Row, grow, nearly_within, rows_of


@st.composite
def some_rows(draw):
    """Rows of a small alphabet, so that many begin alike and some are equal."""
    rows = {}
    for number in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=12))
        targets = draw(st.sets(st.integers(1, len(ids) - 1), min_size=1))
        rows[3 * number] = Row(np.array(ids), np.array(sorted(targets)))
    return rows


def ancestors(tree, node):
    """Nodes that `node` sees, by the order of nodes alone."""
    return [k for k in range(tree.tokens) if k <= node < tree.ends[k]]


def test_rows_have_their_own_prompts_and_targets_behind_them():
    shared, other = (7, 8, 9), [7]
    rows = rows_of([shared, other, shared], [[1, 2], [3], [4, 5]], [[1], [0], [0, 1]])
    assert [row.ids.tolist() for row in rows] == [[7, 8, 9, 1, 2], [7, 3], [7, 8, 9, 4, 5]]
    assert [row.targets.tolist() for row in rows] == [[4], [1], [3, 4]]


@given(some_rows(), st.integers(1, 60))
def test_a_row_is_the_path_to_what_it_reads(rows, budget):
    trees = grow(rows, budget)
    assert sorted(row for tree in trees for row in tree.rows) == sorted(rows)
    for tree in trees:
        for number, reads in zip(tree.rows, tree.reads, strict=True):
            row = rows[number]
            assert len(reads) == len(row.targets)
            for node, target in zip(reads, row.targets, strict=True):
                path = ancestors(tree, node)
                assert tree.ids[path].tolist() == row.ids[:target].tolist()
                assert tree.depths[path].tolist() == list(range(target))


@given(some_rows(), st.integers(1, 60))
def test_each_beginning_is_in_a_tree_once_and_only_if_something_is_learned_after_it(rows, budget):
    for tree in grow(rows, budget):
        beginnings = {tuple(tree.ids[ancestors(tree, node)]) for node in range(tree.tokens)}
        needed = {
            tuple(rows[n].ids[:length])
            for n in tree.rows
            for length in range(1, rows[n].targets[-1] + 1)
        }
        assert beginnings == needed
        assert len(beginnings) == tree.tokens


@given(some_rows(), st.integers(1, 60), st.integers(1, 60))
def test_a_tree_is_as_large_as_the_planned_memory_at_most(rows, budget, most):
    for tree in grow(rows, budget, most):
        longest = max(len(rows[row].path) for row in tree.rows)
        assert tree.tokens <= largest_pass(budget, longest)
        assert tree.tokens <= max(most, 1.25 * longest)


@given(some_rows())
def test_with_room_for_all_every_beginning_is_computed_once(rows):
    trees = grow(rows, 10_000)
    beginnings = {
        tuple(row.ids[:length]) for row in rows.values() for length in range(1, row.targets[-1] + 1)
    }
    assert sum(tree.tokens for tree in trees) == len(beginnings)


@given(some_rows(), st.randoms())
def test_trees_do_not_depend_on_the_order_of_rows(rows, random):
    def shape(trees):
        return sorted((tree.ids.tolist(), tree.ends.tolist()) for tree in trees)

    numbers = list(rows)
    random.shuffle(numbers)
    assert shape(grow(rows, 20)) == shape(grow({n: rows[n] for n in numbers}, 20))


@given(some_rows(), st.data())
def test_rows_that_other_rows_pay_for(rows, data):
    needed = {n: rows[n] for n in data.draw(st.sets(st.sampled_from(sorted(rows))))}

    def common(a, b):
        same = [x == y for x, y in zip(a.path, b.path, strict=False)]
        return [*same, False].index(False)

    expected = {
        number
        for number, row in rows.items()
        if any(10 * common(row, other) >= 9 * len(row.path) for other in needed.values())
    }
    assert needed.keys() | nearly_within(needed, rows).keys() == expected | needed.keys()


def game(rounds=8, prompt=200, turn=150, others=4):
    """A game of one row, and at each of its replies the moves that were not made."""
    draw = np.random.default_rng(0)
    ids = draw.integers(10, 1000, prompt + rounds * turn)
    starts = [prompt + number * turn for number in range(rounds)]
    trunk = Row(ids, np.array([s + k for s in starts for k in range(3)]))
    moves = [
        Row(np.array([*ids[: s + 1], 2000 + other, 1]), np.array([s, s + 1, s + 2]))
        for s in starts
        for other in range(others)
    ]
    return dict(enumerate([trunk, *moves]))


def test_alternative_replies_cost_their_own_tokens_alone():
    rows = game()
    (tree,) = grow(rows, 2048)
    assert len(rows) == 1 + 8 * 4
    # what follows the last reply is not computed, nor is any reply's last token
    assert tree.tokens == 200 + 7 * 150 + 2 + 8 * 4
    assert (tree.ends < tree.tokens).any()


def test_a_game_longer_than_the_budget_keeps_its_alternatives():
    (tree,) = grow(game(), 1000)
    assert tree.tokens > 1000
