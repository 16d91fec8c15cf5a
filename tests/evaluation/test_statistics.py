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


def test_copies_of_a_game_count_once() -> None:
    first, second = [1.0] * 9 + [0.5, 0.0], [0.0, 1.0] + [0.0] * 9
    copied = {(number, seat): each for number, each in enumerate(first) for seat in (0, 1)}
    other = {(number, seat): second[number] for number, seat in copied}
    deals = [number for number, _ in copied]
    scores = mean_score([*copied.values()], deals), mean_score(first)
    gains = (
        paired_difference(copied, other, lambda key: key[0]),
        paired_difference(dict(enumerate(first)), dict(enumerate(second))),
    )
    for twice, once in (scores, gains):
        assert (twice.low, twice.high) == pytest.approx((once.low, once.high))
        assert twice.n == 2 * once.n


@given(SCORES)
def test_games_that_differ_as_they_like_count_each(scores: list[float]) -> None:
    assert mean_score(scores, range(len(scores))) == mean_score(scores)
    even = mean_score([0.0, 1.0] * 9, [number // 2 for number in range(18)])
    assert even == mean_score([0.0, 1.0] * 9), "no narrower where a deal's games differ"


def test_another_win_makes_no_interval_of_pairs_wider() -> None:
    """Games that were all won do not show how far those of a pair agree."""
    pairs = [number // 2 for number in range(40)]
    lows = [mean_score([1.0] * wins + [0.0] * (40 - wins), pairs).low for wins in range(41)]
    assert lows == sorted(lows)


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("pairs", "wins"), [(20, 0.8), (100, 0.5), (100, 0.95)])
def test_an_interval_of_pairs_covers_the_truth(pairs: int, wins: float, alike: float) -> None:
    rng = np.random.default_rng(pairs)
    won = rng.random((2000, pairs, 2)) < wins
    won[..., 1] = np.where(rng.random((2000, pairs)) < alike, won[..., 0], won[..., 1])
    deals = [number // 2 for number in range(2 * pairs)]
    found = [mean_score(scores.ravel().tolist(), deals) for scores in won.astype(float)]
    assert 0.92 < np.mean([each.low <= wins <= each.high for each in found]) < 0.98


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
    parts = grouped([(16, 1.0, "a"), (8, 0.0, "a"), (16, 0.0, "b"), (10, 0.5, "a")])
    assert [(key, part.mean, part.n) for key, part in parts.items()] == [
        (8, 0.0, 1),
        (10, 0.5, 1),
        (16, 0.5, 2),
    ]
