"""The gate: how seldom a worse model passes, and that a better one does."""

import math
from collections.abc import Callable
from random import Random

import pytest

from miner.config.held_out_games import FIRST_PAIRS, LAST_PAIRS
from miner.publishing.best import Evaluated
from miner.publishing.gate import (
    BASE_CAPITAL,
    LAST_ERROR,
    LEAST,
    Bet,
    Gate,
    look_error,
    mean_exceeds,
    undecided_pairs,
)


def _pair(rng: Random, mean: float) -> float:
    """Mean score of two games, each won with the probability `mean`."""
    return sum(rng.random() < mean for _ in range(2)) / 2


def _passes(number: int, mean: float, rng: Random, pairs: int = 300) -> bool:
    """True if the candidate passes at any look."""
    gate = Gate(["game"], number)
    for _ in range(pairs):
        gate.add("game", _pair(rng, mean), 0, 1)
        if gate.passed:
            return True
    return False


def test_worse_candidates_pass_seldom_however_often_one_looks() -> None:
    """Twelve candidates a run, each at the edge of what is worse; the bound is 0.08."""
    rng = Random(0)
    wrong = sum(
        any(_passes(number, LEAST, rng, pairs=150) for number in range(1, 13)) for _ in range(200)
    )
    assert wrong / 200 < 0.08 + 3 * math.sqrt(0.08 * 0.92 / 200)


def test_better_candidates_pass() -> None:
    rng = Random(1)
    assert sum(_passes(1, 0.6, rng) for _ in range(100)) > 90


def test_what_a_bet_has_reached_stays_decided() -> None:
    """The game is played further, as long as another bet is open."""
    gate = Gate(["game", "open"])
    for score in [1.0] * 10 + [0.0] * 10:
        gate.add("game", score, 0, 0)
    assert gate.undecided == ["open", "forfeits"]


def test_one_game_lost_stops_all() -> None:
    gate, rng = Gate(["won", "lost"]), Random(2)
    for _ in range(400):
        gate.add("won", _pair(rng, 0.9), 0, 0)
        gate.add("lost", _pair(rng, 0.4), 0, 0)
    assert gate.undecided == ["lost"]
    assert not gate.passed


@pytest.mark.parametrize(
    ("candidate", "start", "passed"), [(0, 0, True), (0, 1, True), (1, 0, False)]
)
def test_more_forfeits_than_the_start_stop_a_winner(
    candidate: int, start: int, passed: bool
) -> None:
    gate, rng = Gate(["game"]), Random(3)
    for number in range(600):
        rare = number % 20 == 0
        gate.add("game", _pair(rng, 0.9), candidate * rare, start * rare)
    assert gate.passed == passed


def test_later_candidates_need_more() -> None:
    assert Gate([], 1).needed == pytest.approx(math.log(BASE_CAPITAL))
    assert Gate([], 3).needed == pytest.approx(math.log(9 * BASE_CAPITAL))


def _mean_capital(draw: Callable[[Random], float], least: float) -> float:
    """Over many short runs, at their end."""
    rng, total = Random(4), 0.0
    for _ in range(4000):
        bet = Bet(least)
        for _ in range(6):
            bet.add(draw(rng))
        total += math.exp(bet.log_capital)
    return total / 4000


def test_capital_does_not_grow_on_average_while_the_claim_is_true() -> None:
    assert _mean_capital(lambda rng: float(rng.random() < LEAST), LEAST) < 1.05
    assert _mean_capital(lambda rng: float(rng.random() < LEAST + 0.2), LEAST) > 1.1


def test_pairs_against_the_same_opponents_decide_in_training() -> None:
    games = [name for _ in range(30) for name in ("even", "even", "won", "won")]
    start = Evaluated(0, (0.0, 1.0, 0.0, 1.0) * 30, (True, False) * 60)
    better = Evaluated(5, (0.0, 1.0, 1.0, 1.0) * 30, (False,) * 120)
    longer = [Evaluated(each.step, each.scores * 3, each.forfeited * 3) for each in (better, start)]
    assert undecided_pairs(games, better, start, 1 / 40) == ["even"]
    assert undecided_pairs(games * 3, *longer, 1 / 40) == []
    assert undecided_pairs(games * 3, *longer, 1 / 40 / 20**2) == ["even"]
    clumsy = Evaluated(5, longer[0].scores, (True, True) * 180)
    assert undecided_pairs(games * 3, clumsy, longer[1], 1 / 40) == ["forfeits"]


@pytest.mark.parametrize(("more", "reasons"), [(0, []), (8, []), (9, ["forfeits"])])
def test_forfeits_more_than_the_start_are_taken_up_to_two_in_a_hundred(more, reasons) -> None:
    games, scores = ["game"] * 400, (1.0, 0.0) * 200
    start = Evaluated(0, scores, (True, *[False] * 399))
    candidate = Evaluated(5, scores, (*[True] * (1 + more), *[False] * (399 - more)))
    assert undecided_pairs(games, candidate, start, 1 / 40) == reasons


def test_forfeits_are_compared_on_the_games_that_both_have_played() -> None:
    """The start has played all, the candidate half of them until the time was over."""
    games, scores, none = ["game"] * 400, (1.0, 0.0) * 200, (None, None) * 100
    start = Evaluated(0, scores, (True, *[False] * 3) * 100)
    more = Evaluated(5, scores[:200] + none, (True, False) * 100 + (False,) * 200)
    as_many = Evaluated(5, more.scores, start.forfeited[:200] + (False,) * 200)
    assert undecided_pairs(games, more, start, 1 / 40) == ["forfeits"]
    assert undecided_pairs(games, as_many, start, 1 / 40) == []


def _paired(rng: Random, won: float, lost: float) -> float:
    """A pair in training: each game is won or lost against the start's, or has its result."""
    gains = (rng.random() for _ in range(2))
    return (1 + sum((draw < won) - (draw > 1 - lost) for draw in gains) / 2) / 2


def _shown(pairs: int, draw: Callable[[Random], float], error: float = LAST_ERROR) -> float:
    """Share of the candidates whose pairs show that they exceed `LEAST`."""
    rng = Random(6)
    lists = ([draw(rng) for _ in range(pairs)] for _ in range(2000))
    return sum(mean_exceeds(each, LEAST, error) for each in lists) / 2000


@pytest.mark.parametrize("pairs", [16, 75])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: _paired(rng, 0.0, 0.1),
        lambda rng: _paired(rng, 0.1, 0.2),
        lambda rng: _paired(rng, 0.4, 0.5),
        lambda rng: 0.5 * (rng.random() > 0.1),  # seldom, and then both games
    ],
)
def test_one_look_errs_no_more_often_than_it_says(pairs, draw) -> None:
    """All of these score `LEAST` on average."""
    noise = 3 * math.sqrt(LAST_ERROR / 2000)
    assert _shown(pairs, draw) < LAST_ERROR + noise
    assert _shown(pairs, draw, 0.1) < 0.1 + 3 * math.sqrt(0.1 / 2000)


def test_all_looks_together_err_as_seldom_as_a_gate() -> None:
    looks = sum(look_error(k, last=last) for last in (False, True) for k in range(1, 2000))
    assert looks < math.pi**2 / 6 / BASE_CAPITAL < looks + 0.001


def test_one_look_sees_what_a_bet_would_not() -> None:
    """A game that training has not changed: a tenth of the results differ, by chance."""
    assert _shown(75, lambda rng: _paired(rng, 0.05, 0.05)) > 0.75
    assert _shown(75, lambda rng: _paired(rng, 0.2, 0.1)) > 0.95
    assert not mean_exceeds([], LEAST, LAST_ERROR)
    assert not mean_exceeds([1.0] * 2, LEAST, LAST_ERROR)
    assert mean_exceeds([0.5] * 75, LEAST, LAST_ERROR)


@pytest.mark.parametrize(("last", "pairs"), [(True, LAST_PAIRS), (False, FIRST_PAIRS)])
def test_settings_know_how_many_pairs_show_that_a_game_has_not_changed(last, pairs) -> None:
    error = look_error(1, last=last)
    assert mean_exceeds([0.5] * pairs, LEAST, error)
    assert not mean_exceeds([0.5] * (pairs - 1), LEAST, error)


def test_a_pair_with_a_lost_game_shows_nothing() -> None:
    start = Evaluated(0, (1.0, None) * 75)
    candidate = Evaluated(5, (1.0, 0.0) * 75)  # by the games that both have, even at best
    assert undecided_pairs(["game"] * 150, candidate, start, LAST_ERROR) == ["game"]
