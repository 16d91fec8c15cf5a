"""Goofspiel: the i-th lowest card for the i-th lowest prize, until it shows that they do the same.

While the own bids are the prizes', an opponent that bids so too ties every round, and one that bids
at random one round in as many as there are cards. Against such an opponent each prize but the
highest is won by the next card.

The values are chances against both kinds of opponent, weighted by Bayes' rule. Against random bids
the opponent's cards are taken for independent of each other, so that points add up by convolution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from miner.duel.teachers.base import Seen, Values

PRIOR = 0.1
"""That an opponent bids the prize, before any round."""

_TIE = "-3"

Cards = NDArray[np.int64]


class GoofspielTeacher:
    """See the module."""

    def values(self, seen: Seen) -> Values:
        turn = _Turn(seen)
        values = {}
        for card in turn.hand:
            at_random = turn.against_random(np.append(turn.hand[turn.hand != card], card))
            values[int(card) - 1] = (
                1 - turn.copied
            ) * at_random + turn.copied * turn.against_prizes(card)
        return values

    def move(self, seen: Seen) -> int:
        turn = _Turn(seen)
        prize = turn.prizes[-1]
        if turn.copied > 0.5:
            beaten = {card: turn.against_prizes(card) for card in turn.hand}
            return int(max(turn.hand, key=lambda card: (beaten[card], card > prize, -card))) - 1
        return int(turn.hand[(turn.prizes < prize).sum()]) - 1

    def why(self, seen: Seen, move: int) -> str:
        prize, card = int(seen.field("Current point card")), move + 1
        if card == prize:
            return f"the prize is {prize}"
        if card < prize:
            return f"{prize} would cost more than it brings"
        return f"{card} beats a bid of {prize}"


class _Turn:
    """What a text shows.

    Attributes:
        hand: own cards, ascending.
        prizes: all that are left, ascending, and then the one that is bid for.
        copied: how likely it is that the opponent bids the prizes.
    """

    def __init__(self, seen: Seen) -> None:
        winners = seen.field("Win sequence").split()
        points = [int(number) for number in seen.field("Points").split()]
        prize = int(seen.field("Current point card"))
        self.hand: Cards = np.array([action + 1 for action in seen.actions])
        left = _cards(seen.field("Remaining Point Cards"), len(self.hand) - 1)
        self.prizes: Cards = np.array([*left, prize])
        self._deck = len(self.hand) + len(winners)
        self.copied = self._copied(winners, str(seen.player))
        self._lead = points[seen.player] - points[1 - seen.player]

    def against_random(self, own: Cards) -> float:
        """Chance to win where each of `prizes` gets the card of `own` and one of the deck."""
        most = int(self.prizes.sum())
        odds = np.ones(1)
        for prize, card in zip(self.prizes, own, strict=True):
            step = np.zeros(2 * prize + 1)
            step[0], step[prize], step[-1] = self._deck - card, 1, card - 1
            odds = np.convolve(odds, step / self._deck)
        final = self._lead + np.arange(-most, most + 1)
        return float(odds @ ((np.sign(final) + 1) / 2))

    def against_prizes(self, card: int) -> float:
        """Chance to win with `card` for this prize, where the opponent bids each prize.

        The rest goes like for like, or each prize is won by the next card.
        """
        rest = self.hand[self.hand != card]
        return max(self._final(np.append(plan, card)) for plan in (rest, np.roll(rest, -1)))

    def _final(self, own: Cards) -> float:
        final = self._lead + int((np.sign(own - self.prizes) * self.prizes).sum())
        return float((np.sign(final) + 1) / 2)

    def _copied(self, winners: list[str], me: str) -> float:
        """Bayes' rule on the ties that the game began with.

        Once they decide, rounds are won by the next card, but for the one that the highest prize
        costs; else another round than a tie shows that the opponent does not bid the prizes.
        """
        ties = next((i for i, winner in enumerate(winners) if winner != _TIE), len(winners))
        by_luck = float(np.prod([1 / (self._deck - number) for number in range(ties)]))
        copied = PRIOR / (PRIOR + (1 - PRIOR) * by_luck)
        later = winners[ties:]
        lost = sum(winner != me for winner in later)
        return copied if not later or (copied > 0.5 and lost <= 1) else 0.0


def _cards(shown: str, count: int) -> list[int]:
    """`count` ascending cards without space between them, such as `7910` for 7, 9 and 10."""
    two_digits = len(shown) - count
    cut = len(shown) - 2 * two_digits
    pairs = (shown[i : i + 2] for i in range(cut, len(shown), 2))
    return [int(card) for card in (*shown[:cut], *pairs)]
