"""Goofspiel's critic: the chance to win after each legal card, if play goes on as the policy is
taught.

It knows the rules and what the prompt shows. How the policy will match cards to prizes it counts
before a run begins, in games of its own targets against random bids, which is policy iteration. No
strategy is built in and no move is demonstrated: before the first of these games, the policy is
taken to bid at random, as the format's opponent always does.
"""

import math
import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from miner.config.contract import DECK_SIZES, agent_seat
from miner.environments.base import EpisodeTask, Message
from miner.games.goofspiel import GoofspielState, StateTextError, parse_state

Array = NDArray[np.float64]
Cards = tuple[int, ...]

BINS = 8
"""Ranks are kept as shares of the hand, in so many bins, so that hands of all sizes add up."""

PRIOR = 32.0
"""Bids at random that stand for the policy before its first target."""

KEPT_PER_BID = 0.9995
"""Share of the earlier bids' weight that remains with each further one: targets change."""

GAMES = 600
"""Of all deck sizes, in 0.7 s: after 200 the targets are within 0.03 nats of these, after 40 within
0.35, of a random policy 4."""

SURENESS = 2.0
"""Power of the counts. They mix positions of different leads and hands, in each of which the policy
is surer of its card: with 1 the critic's best moves win 0.915 of 10,000 games, with 2 and 3 0.925
and 0.924, with 4 0.921 (8 cards; bid = prize has 0.924)."""

EXACT_CARDS = 2
"""Hands of so many cards or fewer are played out in full; three take four times as long a game and
its best moves win no more."""

CACHED_ENDINGS = 200_000


class Habits:
    """Counts of bids: a card of this rank for a prize of that rank.

    Attributes:
        counts: shape (prize bins, card bins).
    """

    def __init__(self) -> None:
        self.counts: Array = np.full((BINS, BINS), PRIOR / BINS**2)
        self._tables: dict[int, Array] = {}

    def add(self, prize: int, shares: Sequence[float]) -> None:
        """Count a bid.

        Args:
            prize: its rank among those left, from 0.
            shares: probability of each card in hand, lowest first.
        """
        spread = _spread(len(shares))
        bid = np.outer(spread[prize], np.array(shares) @ spread)
        self.counts = self.counts * KEPT_PER_BID + bid
        self._tables.clear()

    def table(self, cards: int) -> Array:
        """Probability of each card's rank for each prize's, shape (cards, cards)."""
        if cards not in self._tables:
            spread = _spread(cards)
            table = (spread @ self.counts @ spread.T) ** SURENESS
            self._tables[cards] = table / table.sum(1, keepdims=True)
        return self._tables[cards]


class Chances:
    """To win, as long as the policy plays softmax(chance / tau) and its opponent at random.

    Attributes:
        habits: of the policy, as far as it has played.
    """

    def __init__(self, tau: float) -> None:
        self.habits = Habits()
        self._tau = tau
        self._endings: dict[tuple[Cards, Cards, int, Cards], float] = {}

    def play(self, cards: int, rng: random.Random) -> float:
        """Play a game, and count how the policy bids in it; returns its score."""
        mine = theirs = tuple(range(1, cards + 1))
        lead, prizes = 0, rng.sample(mine, cards)
        while len(prizes) > 1:
            prize, *prizes = prizes
            rest = tuple(sorted(prizes))
            shares = softmax(
                list(self.after_each(mine, theirs, lead, prize, rest).values()), self._tau
            )
            self.habits.add(sum(each < prize for each in rest), shares)
            [card], other = rng.choices(mine, shares), rng.choice(theirs)
            lead += prize * ((card > other) - (card < other))
            mine, theirs = without(mine, card), without(theirs, other)
        return _outcome(lead + prizes[0] * ((mine > theirs) - (mine < theirs)))

    def after_each(
        self, mine: Cards, theirs: Cards, lead: int, prize: int, rest: Cards
    ) -> dict[int, float]:
        """Chance to win after each own card, over the opponent's cards at random."""
        means = self.after_both(mine, theirs, lead, prize, rest).mean(1)
        return dict(zip(mine, means.tolist(), strict=True))

    def after_both(self, mine: Cards, theirs: Cards, lead: int, prize: int, rest: Cards) -> Array:
        """Chance to win after each pair of cards, shape (mine, theirs)."""
        if len(mine) > EXACT_CARDS + 1:
            return self._by_normal(mine, theirs, lead, prize, rest)
        return np.array(
            [
                [
                    self._ending(
                        without(mine, card),
                        without(theirs, other),
                        lead + prize * ((card > other) - (card < other)),
                        rest,
                    )
                    for other in theirs
                ]
                for card in mine
            ]
        )

    def _by_normal(self, mine: Cards, theirs: Cards, lead: int, prize: int, rest: Cards) -> Array:
        """A normal approximation of the points still to come, for all pairs of cards at once.

        Each remaining prize goes to a side by the habits over the remaining hand, against a card of
        the opponent's at random.
        """
        left = len(rest)
        own, other = np.array(mine), np.array(theirs)
        above = (own[:, None] > other).astype(float)
        below = (own[:, None] < other).astype(float)
        kept = _all_but_one(left + 1)
        # [own card played, own card left, their card played]: share of their cards left it beats
        beats = ((above.sum(1, keepdims=True) - above) / left)[kept]
        loses = ((below.sum(1, keepdims=True) - below) / left)[kept]
        table, prizes = self.habits.table(left), np.array(rest, dtype=float)
        ahead, behind = table @ beats, table @ loses  # [own card played, prize, their card played]
        mean = lead + prize * (above - below) + prizes @ (ahead - behind)
        variance = prizes**2 @ (ahead + behind - (ahead - behind) ** 2)
        chances: Array = 0.5 * (1 + erf(mean / np.sqrt(np.maximum(2 * variance, 1e-9))))
        return chances

    def _ending(self, mine: Cards, theirs: Cards, lead: int, rest: Cards) -> float:
        """Chance to win before the next prize is drawn, played out at the target's temperature."""
        if abs(lead) > sum(rest) or not rest:
            return _outcome(lead)
        if len(rest) == 1:
            return _outcome(lead + rest[0] * ((mine[0] > theirs[0]) - (mine[0] < theirs[0])))
        key = (mine, theirs, lead, rest)
        if key not in self._endings:
            total = 0.0
            for prize in rest:
                after = self.after_each(mine, theirs, lead, prize, without(rest, prize))
                values = list(after.values())
                total += sum(
                    share * value
                    for share, value in zip(softmax(values, self._tau), values, strict=True)
                )
            if len(self._endings) >= CACHED_ENDINGS:
                self._endings.clear()
            self._endings[key] = total / len(rest)
        return self._endings[key]


@lru_cache(maxsize=8)
def solved(tau: float) -> Chances:
    """Chances of a policy that plays softmax(chance / tau), which depend on themselves."""
    chances, rng = Chances(tau), random.Random(0)
    for game in range(GAMES):
        chances.play(DECK_SIZES[game % len(DECK_SIZES)], rng)
    return chances


class GoofspielCritic:
    """Values of legal moves.

    Args:
        tau: temperature, in chances to win, of the policy's target.
        named: true if replies name the card before its id; see `reply_text`.
    """

    def __init__(self, tau: float, *, named: bool = False) -> None:
        self._chances = solved(tau)
        self._named = named

    def values(self, shown: Sequence[Message], task: EpisodeTask) -> dict[str, float] | None:
        """Chance to win by each legal reply; None where `shown` holds no position.

        Args:
            shown: messages, of which the reply answers the last.
            task: the episode's; its seed gives the policy's seat.
        """
        state, seat = _position(shown[-1]["content"]), agent_seat(task.seed)
        if state is None:
            return None
        lead = state.points[seat] - state.points[1 - seat]
        mine, theirs = state.hands[seat], state.hands[1 - seat]
        found = self._chances.after_each(mine, theirs, lead, state.prize, state.remaining)
        return {reply_text(card, named=self._named): value for card, value in found.items()}


def reply_text(card: int, *, named: bool) -> str:
    """A reply that the grader reads as the bid of a card: its id, which is one less than the card.

    Args:
        named: put the card's words first. A language model copies a number that it has read before
            it can compute the one below. Of a reply's numbers the grader takes the lowest id that
            is legal, so that the card's own number does not count.
    """
    return f"Bid: {card}\n{card - 1}" if named else str(card - 1)


def softmax(values: Sequence[float], tau: float) -> list[float]:
    """Probabilities ~ exp(value / tau)."""
    best = max(values)
    weights = [math.exp((value - best) / tau) for value in values]
    total = sum(weights)
    return [weight / total for weight in weights]


@lru_cache(maxsize=64)
def _spread(cards: int) -> Array:
    """Share of each rank of a hand in each bin, shape (cards, bins)."""
    edges = np.linspace(0, BINS, cards + 1)
    low, high = edges[:-1, None], edges[1:, None]
    bins = np.arange(BINS)
    overlap = np.clip(np.minimum(high, bins + 1) - np.maximum(low, bins), 0, None)
    share: Array = overlap / overlap.sum(1, keepdims=True)
    return share


@lru_cache(maxsize=64)
def _all_but_one(cards: int) -> NDArray[np.intp]:
    """For each of so many cards the indices of the others, shape (cards, cards - 1)."""
    everyone = np.arange(cards)
    return np.array([np.delete(everyone, card) for card in everyone])


def _position(shown: str) -> GoofspielState | None:
    try:
        return parse_state(shown)
    except StateTextError:
        return None


def without(cards: Cards, card: int) -> Cards:
    at = cards.index(card)
    return cards[:at] + cards[at + 1 :]


def _outcome(lead: int) -> float:
    return 0.5 + 0.5 * ((lead > 0) - (lead < 0))
