"""Turn advantages against tables computed by hand, and against TRL's own in the common case."""

import math

import pytest

from miner.rewards.advantages import EPSILON, returns_to_go, turn_advantages


def test_returns_to_go_sum_what_is_still_to_come():
    assert returns_to_go([0.0, -1.0, 1.0]) == [0.0, 0.0, 1.0]
    assert returns_to_go([]) == []


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        # terminal reward only: every turn of an episode gets the episode's advantage
        ([[0, 0, 1], [0, 0, 0]], [[0.5, 0.5, 0.5], [-0.5, -0.5, -0.5]]),
        # the same episode return, earned in different turns: only the later turns differ
        ([[1, 0], [0, 1]], [[0.0, -0.5], [0.0, 0.5]]),
        # a lost member leaves the baseline: the others compare among themselves
        ([[1], None, [0]], [[0.5], [], [-0.5]]),
        # a turn that one member alone reached has nothing to compare with
        ([[0, 0, 4], [2]], [[1.0, 0.0, 0.0], [-1.0]]),
        # no variance, no signal
        ([[0, 1], [0, 1]], [[0.0, 0.0], [0.0, 0.0]]),
        ([None, None], [[], []]),
    ],
)
def test_differences_to_the_mean_of_the_same_turn(group, expected):
    assert turn_advantages(group, scale="none") == expected


def test_group_scale_divides_by_the_sample_deviation_of_episode_returns():
    (first, second) = turn_advantages([[0, 1], [0, 0]], scale="group")
    deviation = math.sqrt(0.5) + EPSILON
    assert first == pytest.approx([0.5 / deviation] * 2)
    assert second == pytest.approx([-0.5 / deviation] * 2)


def test_batch_scale_divides_by_the_given_deviation():
    advantages = turn_advantages([[1], [0]], scale="batch", batch_std=2.0)
    assert advantages == [
        [pytest.approx(0.5 / (2 + EPSILON))],
        [pytest.approx(-0.5 / (2 + EPSILON))],
    ]
