"""A gate for duels: a model replaces the start only where pairs of games show that it is no worse.

Each game is a bet against "the candidate scores at most `LEAST`": the capital is
K_t = prod(1 + l_i (X_i - LEAST)) over pairs of seat-swapped games, X_i the candidate's mean score
of a pair and l_i a stake chosen before it. If the claim is true, K is a supermartingale, and by
Ville's inequality it ever reaches a level b with a probability of at most 1 / b, however often one
looks. Forfeits are a separate bet, over all games together. Candidate number k passes when
every bet has reached 20 k^2; over all candidates of a run the error is at most
(1 / 20) sum 1 / k^2 = 0.082. What has not passed leaves the start where it is.

In training the start would have to be loaded beside the model to meet it. There a pair is a seed
that both have played against the same opponent, with X_i = (1 + the candidate's score - the
start's) / 2, which is even at 1/2 as well (`undecided_pairs`). `miner gate` has them meet.

Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (JRSS-B
2024, arXiv 2010.09686), with the stakes of their section B.2 (approximate GRAPA).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from miner.publishing.best import Evaluated

LEAST = 0.45
"""Score against the start that every game has to exceed: even, less a margin."""

FORFEIT_MARGIN = 0.02
"""Forfeits more than the start's, per game, that are taken for as many."""

BASE_CAPITAL = 20.0
_BOLDNESS = 0.75
"""Most of the capital that one pair may lose."""


class Bet:
    """A bet that the mean of numbers in [0, 1] exceeds `least`.

    Attributes:
        log_capital: natural logarithm of the capital, 0 at first.
    """

    def __init__(self, least: float) -> None:
        self.log_capital = 0.0
        self._least = least
        self._count = 1  # half a win and half a loss as a prior: no stake is certain
        self._mean, self._variance = 0.5, 0.25

    def add(self, value: float) -> None:
        """Settle the stake that earlier values led to. Raises: `ValueError` outside [0, 1]."""
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{value!r} is not a result of a pair: scores are in [0, 1]")
        self.log_capital += math.log1p(self._stake() * (value - self._least))
        self._count += 1
        before = value - self._mean
        self._mean += before / self._count
        self._variance += (before * (value - self._mean) - self._variance) / self._count

    def _stake(self) -> float:
        lead = self._mean - self._least
        if lead <= 0:
            return 0.0
        return min(lead / (self._variance + lead**2), _BOLDNESS / self._least)


GateRule = Callable[[Sequence[str], Evaluated, Evaluated, int], list[str]]
"""Names of the held-out episodes, candidate, start, its number -> reasons against it."""


class Gate:
    """The bets on one candidate.

    Args:
        games: names of the games that it has to be even in.
        number: of the candidate in its run, from 1 on.
    """

    def __init__(self, games: Iterable[str], number: int = 1) -> None:
        self.needed = math.log(BASE_CAPITAL * number**2)
        self._games = {game: Bet(LEAST) for game in games}
        # a pair's forfeits of both sides, as a number in [0, 1]: see `add`
        self._forfeits = Bet(0.5 - FORFEIT_MARGIN / 2)

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
        open_games = [game for game, bet in self._games.items() if bet.log_capital < self.needed]
        return open_games + ["forfeits"] * (self._forfeits.log_capital < self.needed)

    def is_open(self, game: str) -> bool:
        """Return whether more pairs of this game could decide something."""
        return bool({game, "forfeits"} & set(self.undecided))


def undecided_pairs(
    games: Sequence[str], candidate: Evaluated, start: Evaluated, number: int = 1
) -> list[str]:
    """Reasons against a candidate that has played the same list of games as the start.

    Each two games are a pair. A forfeited game is a lost one, so that of forfeits only the counts
    are compared.

    Args:
        games: name of each game in the list.

    Returns: games that are not shown to be even, and "forfeits" if there are more.
    """
    bets = {game: Bet(LEAST) for game in games}
    for first in range(0, len(games) - 1, 2):
        pair = slice(first, first + 2)
        own = [score for score in candidate.scores[pair] if score is not None]
        base = [score for score in start.scores[pair] if score is not None]
        if len(own) == len(base) == 2:
            bets[games[first]].add((1 + (sum(own) - sum(base)) / 2) / 2)
    needed = math.log(BASE_CAPITAL * number**2)
    open_games = [game for game, bet in bets.items() if bet.log_capital < needed]
    more = sum(candidate.forfeited) > sum(start.forfeited)
    return open_games + ["forfeits"] * more


def form_lost(
    names: Sequence[str], candidate: Evaluated, start: Evaluated, number: int
) -> list[str]:
    """Return "form" if the candidate breaks it in more conversations than the start, beyond a
    margin; the arguments are those of `undecided_pairs`."""
    more = sum(candidate.forfeited) - sum(start.forfeited)
    return ["form"] * (more > FORFEIT_MARGIN * len(names))
