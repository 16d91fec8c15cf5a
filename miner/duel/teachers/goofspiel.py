"""Goofspiel: the i-th lowest card for the i-th lowest prize, or what beats an opponent's rule.

An opponent that bids the prize ties each round against own bids of the prizes, and is beaten by the
next card for every prize but the highest. A game of ties shows it, the note after that game keeps
it, and the next games begin with the next card, and leave it once rounds contradict the note. Two
ties show it within a game too, but with five cards they are luck once in twenty games, and that
costs more against other opponents than it gains in the first game of a match.

An opponent that has noted this in turn bids one above the prize, and wins every game against like
for like and ties against the next cards. A game of such rounds shows it, and the next games begin
with the card above that.

The values are chances to win: while a note holds, against the rule; else against random bids, whose
cards are taken for independent of each other, so that points add up by convolution.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from miner.config.contract import DUEL_CARDS
from miner.duel.teachers.base import Seen, Values
from miner.games.goofspiel import split_ascending

OFF_PLAN = 0.05
"""Cost of a card beside the next one above the opponent's: most plans still win after it, and the
plan that is easiest to follow does so less often."""

SLIPS, LARGE = 2, 8
"""Rounds of a game that need not be ties, in decks of so many cards or more: a model that bids the
prizes slips at times, which costs two ties, and eight cards tie six times by chance in one game of
1,400."""

RULE = "They bid the prize."
NEXT = "They bid one above the prize."
NO_RULE = "They bid by no rule."

_TIE = "-3"

Cards = NDArray[np.int64]


class GoofspielTeacher:
    """See the module."""

    notes = (RULE, NEXT, NO_RULE)

    def values(self, seen: Seen) -> Values:
        turn = _Turn(seen)
        if turn.rounds.above is None:
            return {int(card) - 1: turn.against_random(card) for card in turn.hand}
        planned = turn.move()
        return {
            int(card) - 1: value - OFF_PLAN * (card != planned)
            for card, value in turn.against_rule.items()
        }

    def move(self, seen: Seen) -> int:
        return _Turn(seen).move() - 1

    def note(self, seen: Seen) -> str:
        """The rule that a game of ties or of lost rounds shows; a note stays while games are won.

        A forfeit that left fewer rounds than any deck has shows nothing.
        """
        rounds, before = _Rounds(seen, 0), noted(seen)
        if rounds.deck < min(DUEL_CARDS):
            return before
        slips = SLIPS * (rounds.deck >= LARGE)
        if rounds.ties >= rounds.deck - slips:
            return RULE
        spared = rounds.deck - 1 - (rounds.deck > LARGE)  # the highest prize is won, and a slip
        above = rounds.lost >= rounds.deck - 2 and rounds.lost + rounds.ties >= spared
        if above and (before == RULE or slips):  # five cards show it once in 120 games by luck
            return NEXT
        return before if rounds.lead > 0 else NO_RULE


class _Rounds:
    """The rounds of a game so far.

    Args:
        left: cards in the hand.

    Attributes:
        deck: cards of each side.
        lead: own points less the opponent's.
        lost, ties: rounds that the opponent, or nobody, has won.
        above: by how much the opponent bids above the prizes, where a note says so and no round
            contradicts it; None where there is no rule.
    """

    def __init__(self, seen: Seen, left: int) -> None:
        winners = seen.field("Win sequence").split()
        points = [int(number) for number in seen.field("Points").split()]
        self.lead = points[seen.player] - points[1 - seen.player]
        self.deck = left + len(winners)
        self.ties = winners.count(_TIE)
        self.lost = winners.count(str(1 - seen.player))
        above = {RULE: 0, NEXT: 1}.get(noted(seen))
        fits = above is not None and self.lost <= 1 and not self.ties
        self.above = above if fits else None


def noted(seen: Seen) -> str:
    """The note on the opponent."""
    return next((note for note in (RULE, NEXT) if note in seen.notes), NO_RULE)


class _Turn:
    """Facts that a turn's text shows.

    Attributes:
        hand: own cards, ascending.
        prizes: all that are left, ascending, and then the one that is bid for.
    """

    def __init__(self, seen: Seen) -> None:
        self.hand: Cards = np.array([action + 1 for action in seen.actions])
        prize = int(seen.field("Current point card"))
        left = split_ascending(seen.field("Remaining Point Cards"), len(self.hand) - 1)
        self.prizes: Cards = np.array([*left, prize])
        self.rounds = _Rounds(seen, len(self.hand))

    def move(self) -> int:
        """The card to play: like for like, or what beats the opponent's rule at the least cost."""
        if self.rounds.above is None:
            return int(self.hand[(self.prizes < self.prizes[-1]).sum()])
        won, bid = self.against_rule, self._bids[-1]
        return int(max(self.hand, key=lambda card: (won[card], card > bid, -card)))

    def against_random(self, card: int) -> float:
        """Chance to win with `card` for this prize and the rest like for like.

        The opponent's card for each prize is any of the deck.
        """
        own = np.append(self.hand[self.hand != card], card)
        most = int(self.prizes.sum())
        odds = np.ones(1)
        for prize, card in zip(self.prizes, own, strict=True):
            step = np.zeros(2 * prize + 1)
            step[0], step[prize], step[-1] = self.rounds.deck - card, 1, card - 1
            odds = np.convolve(odds, step / self.rounds.deck)
        final = self.rounds.lead + np.arange(-most, most + 1)
        return float(odds @ ((np.sign(final) + 1) / 2))

    @cached_property
    def _bids(self) -> Cards:
        """The opponent's by its rule; the lowest where no card is so high."""
        above = self.prizes + (self.rounds.above or 0)
        return np.where(above > self.rounds.deck, above - self.rounds.deck, above)

    @cached_property
    def against_rule(self) -> dict[int, float]:
        """Chance to win with each card for this prize, where the opponent bids by its rule."""
        return {card: self._against_rule(card) for card in self.hand}

    def _against_rule(self, card: int) -> float:
        """The rest goes like for like, or each prize gets the same number of cards above that."""
        rest, count = self.hand[self.hand != card], len(self.hand) - 1
        plans = rest[np.add.outer(np.arange(count), np.arange(count)) % max(1, count)]
        gained = np.sign(plans - self._bids[:-1]) @ self.prizes[:-1]
        final = self.rounds.lead + (gained.max() if count else 0)
        final += np.sign(card - self._bids[-1]) * self.prizes[-1]
        return float((np.sign(final) + 1) / 2)
