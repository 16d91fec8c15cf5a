"""Turn advantages against tables computed by hand."""

import math

import pytest

from miner.rewards.advantages import (
    EPSILON,
    differences_by_round,
    returns_to_go,
    turn_advantages,
)


def turns(*rewards):
    """Rewards of consecutive rounds."""
    return list(enumerate(rewards))


def test_returns_sum_what_is_still_to_come():
    assert returns_to_go([0.0, -1.0, 1.0]) == [0.0, 0.0, 1.0]
    assert returns_to_go([4.0, 2.0, 8.0]) == [14.0, 10.0, 8.0]
    assert returns_to_go([]) == []


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        # terminal reward only: every turn of an episode gets the episode's advantage
        ([turns(0, 0, 1), turns(0, 0, 0)], [[0.5, 0.5, 0.5], [-0.5, -0.5, -0.5]]),
        # the same episode return, earned in different rounds: only the later rounds differ
        ([turns(1, 0), turns(0, 1)], [[0.0, -0.5], [0.0, 0.5]]),
        # a lost member leaves the baseline: the others compare among themselves
        ([turns(1), None, turns(0)], [[0.5], [], [-0.5]]),
        # a round that one member alone reached has nothing to compare with
        ([turns(0, 0, 4), turns(2)], [[1.0, 0.0, 0.0], [-1.0]]),
        # a retried reply is compared within its round, and shifts no later round
        (
            [[(0, -1.0), (0, 0.0), (1, 1.0)], [(0, 0.0), (1, 0.0)]],
            [[-1 / 3, 2 / 3, 0.5], [-1 / 3, -0.5]],
        ),
        # no variance, no signal
        ([turns(0, 1), turns(0, 1)], [[0.0, 0.0], [0.0, 0.0]]),
        ([None, None], [[], []]),
    ],
)
def test_differences_to_the_mean_of_the_same_round(group, expected):
    differences, _ = differences_by_round(group)
    assert differences == [pytest.approx(row) for row in expected]


def test_each_group_is_divided_by_its_own_pooled_deviation_around_the_baselines():
    rows = [turns(0, 1), turns(0, 0), turns(8.0), turns(0.0)]
    advantages = turn_advantages(rows, 2)
    small, large = math.sqrt(0.5) + EPSILON, math.sqrt(32) + EPSILON
    assert advantages[:2] == [pytest.approx([sign * 0.5 / small] * 2) for sign in (1, -1)]
    assert advantages[2:] == [pytest.approx([sign * 4 / large]) for sign in (1, -1)]
