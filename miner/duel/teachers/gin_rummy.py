"""Gin rummy by deadwood: knock as soon as it is allowed, draw and discard for the least deadwood.

The values are a scale of deadwood that keeps its order; nobody has counted wins from it.
"""

import re
from functools import cache

import pyspiel

from miner.duel.teachers.base import ByValue, Seen, Values, chance

_RANKS, _SUITS = "A23456789TJQK", "scdh"
_CARD = re.compile(rf"[{_RANKS}][{_SUITS}]")

UPCARD, STOCK, PASS, KNOCK, FIRST_MELD = 52, 53, 54, 55, 56

_STOCK_GAIN = 3.0
"""Points of deadwood that a card from the stock is rated at."""

_AVERAGE, _SCALE = 20.0, 10.0
_STUCK_HAND = 9
"""Cards in a hand of eight after a draw: three melds of three leave no card to discard."""


class GinRummyTeacher(ByValue):
    """See the module."""

    def values(self, seen: Seen) -> Values:
        hand = _hand(seen)
        return {
            action: 0.99
            if action == KNOCK and not _stuck(hand)
            else chance(_AVERAGE - _deadwood_after(seen, hand, action), _SCALE)
            for action in seen.actions
        }


def _deadwood_after(seen: Seen, hand: list[int], action: int) -> float:
    """Points that count against the player after an action, the next discard included."""
    utils = _utils()
    phase = seen.field("Phase")
    if action == UPCARD:
        return float(_after_discard([*hand, _card(seen.field("Stock size").split()[-1])]))
    if action == STOCK or (action == PASS and phase == "FirstUpcard"):
        return utils.min_deadwood(hand) - _STOCK_GAIN
    if action == PASS:  # melds can be laid down after the last card that is laid off
        laying_off = any(each < UPCARD for each in seen.actions)
        return float(utils.min_deadwood(hand) if laying_off else utils.total_card_value(hand))
    if action == KNOCK:
        return float(_after_discard(hand))
    gone = utils.int_to_meld[action - FIRST_MELD] if action >= FIRST_MELD else [action]
    rest = [card for card in hand if card not in gone]
    # of discards that leave as much, the highest: it would be the dearest to be left with
    return utils.min_deadwood(rest) - (0.01 * utils.card_value(action) if action < UPCARD else 0.0)


def _after_discard(hand: list[int]) -> int:
    utils = _utils()
    return min(utils.min_deadwood([*hand[:i], *hand[i + 1 :]]) for i in range(len(hand)))


def _stuck(hand: list[int]) -> bool:
    melds = _utils().best_meld_group(hand)
    return len(hand) == _STUCK_HAND and sorted(map(len, melds)) == [3, 3, 3]


def _hand(seen: Seen) -> list[int]:
    """The cards in the player's own block. Raises: `ValueError`."""
    _, found, block = seen.state.partition(f"\nPlayer{seen.player}:")
    if not found:
        raise ValueError(f"no hand in {seen.state[:120]!r}")
    rows = [line for line in block.split("\nPlayer")[0].splitlines() if line.startswith("|")]
    return [_card(card) for row in rows for card in _CARD.findall(row)]


def _card(shown: str) -> int:
    """Id of a card such as `Th`."""
    return len(_RANKS) * _SUITS.index(shown[1]) + _RANKS.index(shown[0])


@cache
def _utils() -> pyspiel.gin_rummy.GinRummyUtils:
    # a hand as large as can be: without the points of a discard that OpenSpiel takes off beyond it
    return pyspiel.gin_rummy.GinRummyUtils(len(_RANKS), len(_SUITS), 11)
