"""Turn advantages against tables computed by hand."""

import math

import pytest

from miner.rewards.advantages import EPSILON, decayed_returns, turn_advantages


def turns(*rewards):
    """Rewards of consecutive rounds."""
    return list(enumerate(rewards))


def test_returns_sum_what_is_still_to_come():
    assert decayed_returns([0.0, -1.0, 1.0], 1.0) == [0.0, 0.0, 1.0]
    assert decayed_returns([4.0, 2.0, 8.0], 0.5) == [4 + 1 + 2, 2 + 4, 8.0]
    assert decayed_returns([1.0, 2.0], 0.0) == [1.0, 2.0]
    assert decayed_returns([], 1.0) == []


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
    advantages = turn_advantages(group, len(group), scale="none")
    assert advantages == [pytest.approx(row) for row in expected]


def test_decay_weighs_the_future_down():
    advantages = turn_advantages([turns(0, 1), turns(0, 0)], 2, decay=0.5, scale="none")
    assert advantages == [[0.25, 0.5], [-0.25, -0.5]]


def test_group_scale_divides_by_the_pooled_deviation_around_the_baselines():
    (first, second) = turn_advantages([turns(0, 1), turns(0, 0)], 2, scale="group")
    deviation = math.sqrt(0.5) + EPSILON
    assert first == pytest.approx([0.5 / deviation] * 2)
    assert second == pytest.approx([-0.5 / deviation] * 2)


def test_batch_scale_shares_one_deviation_between_groups():
    rows = [turns(4.0), turns(0.0), turns(1.0), turns(1.0)]
    deviation = math.sqrt((8.0 + 0.0) / 2) + EPSILON
    advantages = turn_advantages(rows, 2, scale="batch")
    assert advantages == [
        pytest.approx([2 / deviation]),
        pytest.approx([-2 / deviation]),
        [0.0],
        [0.0],
    ]


def test_the_group_is_the_scale_that_is_not_asked_for():
    rows = [turns(4.0), turns(0.0), turns(1.0), turns(0.0)]
    assert turn_advantages(rows, 2) == turn_advantages(rows, 2, scale="group")
    assert turn_advantages(rows, 2) != turn_advantages(rows, 2, scale="batch")
