"""Goofspiel as text: the one module that knows the state block, the labels and the card ids.

Invariants:
* a card's action id is its face value minus one, on every deck size and for both seats;
* `parse_state` reads every block that the server shows and raises `StateTextError` for all else;
* nothing here remembers a game: hands are read from each state block, never tracked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from miner.config.contract import DECK_SIZES
from miner.environments.games.turn import Turn

TIE = -3
"""The winner that the win sequence shows for a round in which both players bid the same card."""

_WIN_LEGEND = "(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)"

_STATE = re.compile(
    r"Current point card: (?P<prize>\d{1,2})\n"
    r"Remaining Point Cards: (?P<remaining>\d{0,64})\n"
    r"P0 hand: (?P<hand0>[\d ]{0,64})\n"
    r"P1 hand: (?P<hand1>[\d ]{0,64})\n"
    r"Win sequence:(?P<wins>[-\d ]{0,96})\n"
    r"\(Win sequence: [^\n]{0,96}\) ?\n"
    r"Player 0: (?P<points0>\d{1,4}) points, Player 1: (?P<points1>\d{1,4}) points"
)
_BLOCK = re.compile(_STATE.pattern + r" ?\n?")


class StateTextError(ValueError):
    """A text that should hold a Goofspiel state block does not."""


@dataclass(frozen=True, slots=True)
class GoofspielState:
    """What both players see before a bid.

    Attributes:
        prize: face value of the card that is bid for now.
        remaining: face values of the prizes still hidden, ascending.
        hands: the cards of player 0 and of player 1, ascending.
        points: points of player 0 and of player 1.
        wins: winner of each finished round: 0, 1 or `TIE`.
    """

    prize: int
    remaining: tuple[int, ...]
    hands: tuple[tuple[int, ...], tuple[int, ...]]
    points: tuple[int, int]
    wins: tuple[int, ...]


def deck_size(task_id: int) -> int:
    """Cards per hand in the game with this id."""
    return DECK_SIZES[task_id % len(DECK_SIZES)]


@lru_cache(maxsize=256)
def label(player: int, action: int) -> str:
    """How the server names bidding the card of `action`, or dealing it as a prize (player -1)."""
    return f"Deal {action + 1}" if player < 0 else f"[P{player}]Bid: {action + 1}"


def legal_ids_from_hand(hand: Iterable[int]) -> tuple[int, ...]:
    """Action ids of the cards of a hand, ascending."""
    return tuple(sorted(card - 1 for card in hand))


def state_text(observation: str) -> str:
    """The state block for OpenSpiel's observation string, which ends in wins and points.

    The legend's line ends in a space from the second round on, as on the server.
    """
    cards, _, outcome = observation.partition("Win sequence: ")
    wins, _, points = outcome.partition("\nPoints: ")
    points0, points1 = points.split()
    wins = wins.rstrip()
    pad = " " if wins else ""
    return (
        f"{cards}Win sequence: {wins}\n{_WIN_LEGEND}{pad}\n"
        f"Player 0: {points0} points, Player 1: {points1} points \n"
    )


def turn_shown(text: str, seat: int) -> Turn | None:
    """The turn that a text with a state block puts to `seat`, None if it holds no state block.

    Raises: `StateTextError` for a state block that contradicts itself.
    """
    block = _BLOCK.search(text)
    if block is None:
        return None
    legal = legal_ids_from_hand(parse_state(block[0]).hands[seat])
    return Turn(block[0], seat, {action: label(seat, action) for action in legal})


def parse_state(text: str) -> GoofspielState:
    """The state shown somewhere in `text` (a whole observation or chat message will do).

    Raises: `StateTextError` when no well-formed state block is found.
    """
    match = _STATE.search(text)
    if match is None:
        raise StateTextError(
            f"no Goofspiel state block in {text[:200]!r}: expected lines from "
            "'Current point card: N' to 'Player 0: A points, Player 1: B points'"
        )
    hands = (_numbers(match["hand0"]), _numbers(match["hand1"]))
    if len(hands[0]) != len(hands[1]) or not hands[0]:
        raise StateTextError(f"hands of unequal size or empty in {match[0][:200]!r}")
    return GoofspielState(
        prize=int(match["prize"]),
        remaining=_split_ascending(match["remaining"], len(hands[0]) - 1),
        hands=hands,
        points=(int(match["points0"]), int(match["points1"])),
        wins=_numbers(match["wins"]),
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split())
    except ValueError:
        raise StateTextError(f"expected numbers separated by spaces, got {text!r}") from None


def _split_ascending(digits: str, count: int) -> tuple[int, ...]:
    """Split `digits`, `count` ascending numbers of one or two digits written without separators."""
    two_digit = len(digits) - count
    ones = count - two_digit
    if two_digit < 0 or ones < 0:
        raise StateTextError(f"expected {count} remaining point cards, got {digits!r}")
    pairs = digits[ones:]
    cards = [int(digit) for digit in digits[:ones]]
    cards += [int(pairs[i : i + 2]) for i in range(0, len(pairs), 2)]
    if cards != sorted(set(cards)):
        raise StateTextError(f"expected {count} ascending point cards, got {digits!r}")
    return tuple(cards)
