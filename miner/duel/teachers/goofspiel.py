"""Goofspiel: the i-th lowest card for the i-th lowest prize, until an opponent shows its rule.

Rules are known by what they add to the prize: an opponent that bids the prize (0) ties each round
against own bids of the prizes, and is beaten by the next card for every prize but the highest; one
that has learned this (1) is beaten by the next but one, and so on. Ties show a copy of the prizes
within a game; the result of a whole game shows the other rules, for the note on the opponent. The
next game begins with the answer to the note, and leaves it once a round contradicts it.

The values are chances against the rule and against random bids, weighted by Bayes' rule. Against
random bids the opponent's cards are taken for independent of each other, so that points add up by
convolution.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from miner.duel.teachers.base import Seen, Values

PRIOR = 0.1
"""That an opponent bids the prize, before any round and without a note."""

DENIED = 0.02
"""The same where a note says that the opponent has no rule."""

NOTED = 0.9
"""The same of the rule that a note names, until a round contradicts it."""

OFF_PLAN = 0.05
"""Cost of a card beside the next one above the opponent's: most plans still win after it, and the
plan that is easiest to follow does so less often."""

RULES = range(3)
"""Additions to the prize that are told apart."""

NO_RULE = "They bid by no rule."

_RULE = re.compile(r"They bid the prize(?: plus (\d))?\.$")
_TIE = "-3"

Cards = NDArray[np.int64]


def rule_note(plus: int) -> str:
    """The note that names a rule."""
    return f"They bid the prize plus {plus}." if plus else "They bid the prize."


class GoofspielTeacher:
    """See the module."""

    notes = (NO_RULE, *map(rule_note, RULES))

    def values(self, seen: Seen) -> Values:
        turn = _Turn(seen)
        planned, values = turn.move(), {}
        for card in turn.hand:
            at_random = turn.against_random(np.append(turn.hand[turn.hand != card], card))
            by_rule = turn.against_rule(card) - OFF_PLAN * (card != planned)
            values[int(card) - 1] = (1 - turn.known) * at_random + turn.known * by_rule
        return values

    def move(self, seen: Seen) -> int:
        return _Turn(seen).move() - 1

    def why(self, seen: Seen, move: int) -> str:
        prize, card = int(seen.field("Current point card")), move + 1
        if card == prize:
            return f"the prize is {prize}"
        if card < prize:
            return f"{prize} would cost more than it brings"
        return f"{card} beats a bid of {prize}"

    def note(self, seen: Seen) -> str:
        rounds = _Rounds(seen, 0)
        shown = rounds.rule()
        return NO_RULE if shown is None else rule_note(shown)


class _Rounds:
    """The rounds of a game so far.

    Args:
        left: cards in the hand.

    Attributes:
        deck: cards of each side.
        noted: addition of the rule that a note names; None without one.
        known: how likely it is that the opponent follows the rule noted, or else bids the prizes.
    """

    def __init__(self, seen: Seen, left: int) -> None:
        self._winners = seen.field("Win sequence").split()
        self._me = str(seen.player)
        points = [int(number) for number in seen.field("Points").split()]
        self._points = points[seen.player], points[1 - seen.player]
        self.lead = self._points[0] - self._points[1]
        self.deck = left + len(self._winners)
        named = next(filter(None, map(_RULE.match, seen.notes)), None)
        self.noted = int(named[1] or 0) if named else None
        self._prior = DENIED if NO_RULE in seen.notes else PRIOR
        self.known = self._copied() if self.noted is None else self._confirmed()

    def rule(self) -> int | None:
        """After the last round: the addition that the opponent's bids had; None for no rule."""
        plus = 0 if self.noted is None else self.noted + 1
        decided = len(self._winners) - self._winners.count(_TIE)
        shown = (*self._points, self._winners.count(self._me), decided)
        prizes = np.arange(1, self.deck + 1)
        for rule in RULES:
            signs = np.sign(_bids(self.deck, plus) - _bids(self.deck, rule))
            won, lost = signs > 0, signs < 0
            if shown == (won @ prizes, lost @ prizes, won.sum(), np.count_nonzero(signs)):
                return rule
        return 0 if self.noted is None and self.known > 0.5 else None

    def _confirmed(self) -> float:
        """The own bids are one above the rule's: each round is won but that of its highest card."""
        lost = sum(winner != self._me for winner in self._winners)
        return NOTED if lost <= 1 and _TIE not in self._winners else 0.0

    def _copied(self) -> float:
        """Bayes' rule on the ties that the game began with.

        Once they decide, rounds are won by the next card, but for the one that the highest prize
        costs; else another round than a tie shows that the opponent does not bid the prizes.
        """
        winners = self._winners
        ties = next((i for i, winner in enumerate(winners) if winner != _TIE), len(winners))
        by_luck = float(np.prod([1 / (self.deck - number) for number in range(ties)]))
        copied = self._prior / (self._prior + (1 - self._prior) * by_luck)
        later = winners[ties:]
        lost = sum(winner != self._me for winner in later)
        return copied if not later or (copied > 0.5 and lost <= 1) else 0.0


class _Turn:
    """What a turn's text shows.

    Attributes:
        hand: own cards, ascending.
        prizes: all that are left, ascending, and then the one that is bid for.
        bids: of an opponent that follows the rule, for each of `prizes`.
        known: how likely it is that the opponent follows it.
    """

    def __init__(self, seen: Seen) -> None:
        self.hand: Cards = np.array([action + 1 for action in seen.actions])
        prize = int(seen.field("Current point card"))
        left = _cards(seen.field("Remaining Point Cards"), len(self.hand) - 1)
        self.prizes: Cards = np.array([*left, prize])
        rounds = _Rounds(seen, len(self.hand))
        self.known, self._lead, self._deck = rounds.known, rounds.lead, rounds.deck
        self.bids = _bids(self._deck, rounds.noted or 0)[self.prizes - 1]

    def move(self) -> int:
        """The card to play: like for like, or what beats the rule at the least cost."""
        if self.known <= 0.5:
            return int(self.hand[(self.prizes < self.prizes[-1]).sum()])
        won = {card: self.against_rule(card) for card in self.hand}
        bid = self.bids[-1]
        return int(max(self.hand, key=lambda card: (won[card], card > bid, -card)))

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

    def against_rule(self, card: int) -> float:
        """Chance to win with `card` for this prize, where the opponent follows the rule.

        The rest goes like for like, or each prize gets the same number of cards above that.
        """
        rest, count = self.hand[self.hand != card], len(self.hand) - 1
        plans = rest[np.add.outer(np.arange(count), np.arange(count)) % max(1, count)]
        gained = np.sign(plans - self.bids[:-1]) @ self.prizes[:-1]
        final = self._lead + (gained.max() if count else 0)
        final += np.sign(card - self.bids[-1]) * self.prizes[-1]
        return float((np.sign(final) + 1) / 2)


def _bids(deck: int, plus: int) -> Cards:
    """The card for each prize from 1 on, by a rule; the highest prizes get the lowest cards."""
    return np.roll(np.arange(1, deck + 1), -plus)


def _cards(shown: str, count: int) -> list[int]:
    """`count` ascending cards without space between them, such as `7910` for 7, 9 and 10."""
    two_digits = len(shown) - count
    cut = len(shown) - 2 * two_digits
    pairs = (shown[i : i + 2] for i in range(cut, len(shown), 2))
    return [int(card) for card in (*shown[:cut], *pairs)]
