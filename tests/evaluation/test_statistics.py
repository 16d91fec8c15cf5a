"""Intervals that are as wide as they must be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from miner.evaluation.statistics import grouped, mean_score, paired_difference

SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60)


@given(st.integers(1, 300), st.data())
def test_wins_and_losses_get_the_wilson_interval(n: int, data: st.DataObject) -> None:
    wins = data.draw(st.integers(0, n))
    estimate = mean_score([1.0] * wins + [0.0] * (n - wins))
    known = binomtest(wins, n).proportion_ci(method="wilson")
    assert (estimate.low, estimate.high) == pytest.approx((known.low, known.high), abs=1e-9)


@given(SCORES)
def test_an_interval_holds_its_mean_stays_in_bounds_and_has_width(scores: list[float]) -> None:
    estimate = mean_score(scores)
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate.high - estimate.low > 0.01
    assert estimate.n == len(scores)


@pytest.mark.parametrize("probabilities", [(0.5, 0.0, 0.5), (0.04, 0.02, 0.94), (0.3, 0.2, 0.5)])
@pytest.mark.parametrize("n", [25, 250])
def test_the_interval_of_a_mean_covers_the_truth(
    probabilities: tuple[float, float, float], n: int
) -> None:
    rng = np.random.default_rng(n)
    truth = float(np.dot((0, 0.5, 1), probabilities))
    samples = rng.choice((0, 0.5, 1), size=(2000, n), p=probabilities)
    intervals = [mean_score(row.tolist()) for row in samples]
    covered = np.mean([interval.low <= truth <= interval.high for interval in intervals])
    assert covered > 0.92


@given(SCORES, st.data())
def test_a_paired_difference_is_antisymmetric_and_bounded(
    scores: list[float], data: st.DataObject
) -> None:
    size = len(scores)
    others = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size))
    first, second = dict(enumerate(scores)), dict(enumerate(others))
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert (there.mean, there.low, there.high) == pytest.approx(
        (-back.mean, -back.high, -back.low), abs=1e-12
    )
    assert -1 <= there.low <= there.mean <= there.high <= 1


def test_a_paired_difference_is_that_of_agresti_and_min() -> None:
    """Ten pairs, three won by the first alone and one by the second alone, worked by hand."""
    first = dict(enumerate([1, 1, 1, 0, 1, 1, 1, 0, 0, 0]))
    second = dict(enumerate([0, 0, 0, 1, 1, 1, 1, 0, 0, 0]))
    difference = paired_difference(first, second)
    half = 1.959964 * ((3.5 + 1.5 - 2**2 / 12) / 12**2) ** 0.5
    assert (difference.mean, difference.low, difference.high) == pytest.approx(
        (0.2, 2 / 12 - half, 2 / 12 + half), abs=1e-6
    )


def test_equal_results_do_not_prove_equality() -> None:
    scores = dict(enumerate([1.0, 0.0] * 50))
    difference = paired_difference(scores, scores)
    assert difference.mean == 0
    assert difference.low < 0 < difference.high


def test_likelihoods_and_their_differences_get_the_t_interval() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.6, 100)
    better = base + rng.normal(0.015, 0.01, 100)
    score = mean_score(better.tolist(), likelihoods=True)
    pairs = (dict(enumerate(scores.tolist())) for scores in (better, base))
    gain = paired_difference(*pairs, likelihoods=True)
    for estimate, values in ((score, better), (gain, better - base)):
        known = ttest_1samp(values, 0).confidence_interval(0.95)
        assert (estimate.low, estimate.high) == pytest.approx((known.low, known.high))
    assert 0.01 < gain.low < gain.high < 0.02


def test_one_likelihood_shows_no_spread() -> None:
    score = mean_score([0.3], likelihoods=True)
    gain = paired_difference({1: 0.3}, {1: 0.2}, likelihoods=True)
    assert (score.low, score.high, gain.low, gain.high) == (0, 1, -1, 1)


def test_only_shared_episodes_are_compared() -> None:
    difference = paired_difference({1: 1.0, 2: 1.0, 9: 0.0}, {1: 0.0, 2: 0.0, 7: 1.0})
    assert (difference.mean, difference.n) == (1.0, 2)


def test_groups_come_in_ascending_order() -> None:
    parts = grouped([(16, 1.0), (8, 0.0), (16, 0.0), (10, 0.5)])
    assert [(key, part.mean, part.n) for key, part in parts.items()] == [
        (8, 0.0, 1),
        (10, 0.5, 1),
        (16, 0.5, 2),
    ]


@pytest.mark.parametrize("scores", [[], [1.5], [-0.1, 1.0], [float("nan")]])
def test_what_is_not_a_list_of_scores_is_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no scores|outside \[0, 1\]"):
        mean_score(scores)


def test_nothing_in_common_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="share no episode"):
        paired_difference({1: 1.0}, {2: 1.0})
