"""A gate for duels: a model replaces the start only where pairs of games show that it is no worse.

A pair is two seat-swapped games of a candidate and the start, X in [0, 1] the candidate's mean
score of them. Every game has to show that it is above `LEAST` on average: even, less a margin.

`miner gate` has the two meet, for as long as it takes (`Gate`). Each game is a bet against "at most
`LEAST`": the capital is K_t = prod(1 + l_i (X_i - LEAST)), l_i a stake chosen before X_i. If the
claim is true, K is a supermartingale, and by Ville's inequality it ever reaches a level b with a
probability of at most 1 / b, however often one looks. Forfeits are a separate bet, over all games
together. Candidate number k passes when every bet has reached 20 k^2; over all candidates the error
is at most (1 / 20) sum 1 / k^2 = 0.082.

In training the start would have to be loaded beside the model to meet it. There a pair is a seed
that both have played against the same opponent, with X = (1 + the candidate's score - the start's)
/ 2, which is even at 1/2 as well, and the list of pairs is fixed before the run: a candidate is
looked at once, after all of it (`undecided_pairs`). A bet would pay for looks that nobody takes, so
the test is another one (`mean_exceeds`). Its error for candidate k is `look_error`: candidates
during training and those at its end are counted apart, 0.082 in all again, most of which is for the
last weights. They have learned most, and every game has to pass: one in which nothing was learned
would too often keep back what was learned in the others.

Source of the bets: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting
(JRSS-B 2024, arXiv 2010.09686), with the stakes of their section B.2 (approximate GRAPA).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist

import numpy as np
from scipy.optimize import brentq

from miner.publishing.best import Evaluated

LEAST = 0.45
"""Score against the start that every game has to exceed: even, less a margin."""

FORFEIT_MARGIN = 0.02
"""Forfeits more than the start's, per game, that are taken for as many; each is a lost game."""

BASE_CAPITAL = 20.0
MEANWHILE_ERROR, LAST_ERROR = 1 / 160, 1 / 23
"""Of the first candidate during training, and of the first at its end."""

_BOLDNESS = 0.75
"""Most of the capital that one pair may lose."""


class Bet:
    """A bet that the mean of numbers in [0, 1] exceeds `least`.

    Attributes:
        log_capital: natural logarithm of the capital, 0 at first.
        highest: the highest that it has been, which Ville's inequality bounds.
    """

    def __init__(self, least: float) -> None:
        self.log_capital = self.highest = 0.0
        self._least = least
        self._count = 1  # half a win and half a loss as a prior: no stake is certain
        self._mean, self._variance = 0.5, 0.25

    def add(self, value: float) -> None:
        """Settle the stake that earlier values led to."""
        self.log_capital += math.log1p(self._stake() * (value - self._least))
        self.highest = max(self.highest, self.log_capital)
        self._count += 1
        before = value - self._mean
        self._mean += before / self._count
        self._variance += (before * (value - self._mean) - self._variance) / self._count

    def _stake(self) -> float:
        lead = self._mean - self._least
        if lead <= 0:
            return 0.0
        return min(lead / (self._variance + lead**2), _BOLDNESS / self._least)


GateRule = Callable[[Sequence[str], Evaluated, Evaluated, float], list[str]]
"""Names of the held-out episodes, candidate, start, error (`look_error`) -> reasons against it."""


class Gate:
    """The bets on one candidate.

    Args:
        games: names of the games that it has to be even in.
        number: of the candidate in its run, from 1 on.
    """

    def __init__(self, games: Iterable[str], number: int = 1) -> None:
        self.needed = math.log(BASE_CAPITAL * number**2)
        self._games = {game: Bet(LEAST) for game in games}
        self._forfeits = _forfeit_bet()

    def add(self, game: str, score: float, forfeits: int, start_forfeits: int) -> None:
        """A pair of games.

        Args:
            score: the candidate's mean of the two, in [0, 1].
            forfeits, start_forfeits: games that each side forfeited, 0 to 2.
        """
        self._games[game].add(score)
        self._forfeits.add(0.5 + (start_forfeits - forfeits) / 4)

    @property
    def passed(self) -> bool:
        """Return whether the candidate may replace the start."""
        return not self.undecided

    @property
    def undecided(self) -> list[str]:
        """Games that are not shown to be even yet, and "forfeits"."""
        open_games = [game for game, bet in self._games.items() if bet.highest < self.needed]
        return open_games + ["forfeits"] * (self._forfeits.highest < self.needed)

    @property
    def without_forfeits(self) -> int:
        """Pairs, of all games together, that decide the bet on forfeits where there are none."""
        bet, pairs = _forfeit_bet(), 0
        while bet.highest < self.needed:
            bet.add(0.5)
            pairs += 1
        return pairs

    def is_open(self, game: str) -> bool:
        """Return whether more pairs of this game could decide something."""
        return bool({game, "forfeits"} & set(self.undecided))


def _forfeit_bet() -> Bet:
    """A bet on the forfeits of both sides, of a pair as a number in [0, 1]: see `Gate.add`."""
    return Bet(0.5 - FORFEIT_MARGIN / 2)


def look_error(number: int, *, last: bool) -> float:
    """Error of the one look at a candidate.

    Args:
        number: of the candidate among those during training, or among those at its end; from 1.
    """
    return (LAST_ERROR if last else MEANWHILE_ERROR) / number**2


def mean_exceeds(values: Sequence[float], least: float, error: float) -> bool:
    """Return whether numbers in [0, 1], looked at once, show that their mean exceeds `least`.

    The log of the empirical likelihood ratio, which is what the best constant stake of a bet would
    have won in hindsight, is half a squared standard normal if the mean is `least` (Owen 1988). A 0
    is added to the numbers, so that few of them show nothing and rare losses that have not come up
    yet are reckoned with: without it the error exceeds its bound (Chen, Variyath and Abraham,
    Adjusted empirical likelihood, JCGS 2008, add such a number). docs/duels.md has the error and
    the power by simulation.
    """
    gains = np.array([*values, 0.0]) - least

    def slope(stake: float) -> float:
        return float(np.sum(gains / (1 + stake * gains)))

    if slope(0.0) <= 0:
        return False
    stake = brentq(slope, 0.0, (1 - 1e-9) / least)
    return bool(np.log1p(stake * gains).sum() >= NormalDist().inv_cdf(1 - error) ** 2 / 2)


def undecided_pairs(
    games: Sequence[str], candidate: Evaluated, start: Evaluated, error: float
) -> list[str]:
    """Reasons against a candidate that has played the same list of games as the start.

    Each two games are a pair. A forfeited game is a lost one, so that of forfeits only the counts
    are compared.

    Args:
        games: name of each game in the list.

    Returns: games that are not shown to be even, and "forfeits" if there are more by a margin.
    """
    pairs: dict[str, list[float]] = {game: [] for game in games}
    for first in range(0, len(games) - 1, 2):
        both = slice(first, first + 2)
        own = [score for score in candidate.scores[both] if score is not None]
        base = [score for score in start.scores[both] if score is not None]
        if len(own) == len(base) == 2:
            pairs[games[first]].append((1 + (sum(own) - sum(base)) / 2) / 2)
    undecided = [game for game, each in pairs.items() if not mean_exceeds(each, LEAST, error)]
    return undecided + ["forfeits"] * _more_forfeits(candidate, start)


def _more_forfeits(candidate: Evaluated, start: Evaluated) -> bool:
    """Return whether there are, of what both have played."""
    scores = zip(candidate.scores, start.scores, strict=True)
    played = [own is not None and base is not None for own, base in scores]
    more = sum(itertools.compress(candidate.forfeited, played))
    more -= sum(itertools.compress(start.forfeited, played))
    return more > FORFEIT_MARGIN * sum(played)


def form_lost(
    names: Sequence[str], candidate: Evaluated, start: Evaluated, error: float
) -> list[str]:
    """Return "form" if the candidate breaks it in more conversations than the start, beyond a
    margin; the arguments are those of `undecided_pairs`."""
    return ["form"] * _more_forfeits(candidate, start)
