"""Goofspiel: 8 to 16 cards on servers, with both bids at once; 5 to 13 in duels, where bids follow
each other, the second without sight of the first.

Equal bids discard the prize, and the last round plays itself, contrary to some rules texts.

Invariants:
* a card's action id is its face value minus one, on every deck size and for both seats;
* `parse_state` reads every block that the server shows and raises `StateTextError` for all else;
* nothing here remembers a game: hands are read from each state block, never tracked.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import pyspiel

from miner.config.contract import DECK_SIZES, DUEL_CARDS
from miner.games.base import (
    RANDOM,
    Game,
    Parameters,
    ReferenceScore,
    Rule,
    Scene,
    StateTextError,
    Turn,
)
from miner.games.drawing import card

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


@dataclass(frozen=True, slots=True)
class GoofspielState:
    """Information of both players before a bid.

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


@lru_cache(maxsize=256)
def label(player: int, action: int) -> str:
    """The server's name of bidding the card of `action`, or dealing it as a prize (player -1)."""
    return f"Deal {action + 1}" if player < 0 else f"[P{player}]Bid: {action + 1}"


def _server_parameters(configuration: int) -> Parameters:
    size = DECK_SIZES[configuration % len(DECK_SIZES)]
    return {"players": 2, "num_cards": size, "points_order": "random"}


def _duel_parameters(configuration: int) -> Parameters:
    return {
        "players": 2,
        "num_cards": DUEL_CARDS[configuration % len(DUEL_CARDS)],
        "imp_info": True,
        "points_order": "random",
        "returns_type": "win_loss",
    }


def _server_label(state: pyspiel.State, player: int, action: int) -> str:
    return label(player, action)


def _duel_text(state: pyspiel.State, player: int) -> str:
    return f"You are Player {player} (P{player}).\n{state.observation_string(player)}"


def _server_text(state: pyspiel.State, player: int) -> str:
    return state_text(state.observation_string(player))


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
    hand = parse_state(block[0]).hands[seat]
    return Turn(block[0], seat, {held - 1: label(seat, held - 1) for held in sorted(hand)})


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
        remaining=split_ascending(match["remaining"], len(hands[0]) - 1),
        hands=hands,
        points=(int(match["points0"]), int(match["points1"])),
        wins=_numbers(match["wins"]),
    )


def prize_value(text: str) -> int:
    """Value of the prize that a duel's text shows. Raises: `StateTextError` where it shows none."""
    found = re.search(r"Current point card: (\d+)", text)
    if found is None:
        raise StateTextError(f"no current point card is shown in {text[:120]!r}")
    return int(found.group(1))


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    history = state.history()
    size = state.get_game().num_distinct_actions()
    over = state.is_terminal()
    prizes, bids = history[0::3], (history[1::3], history[2::3])
    done = min(len(bids[0]), len(bids[1]))
    now = prizes[-1] if not over else None
    rows: list[Scene] = [
        {"title": "prize", "items": [] if now is None else [card(now + 1, mark=True)]}
    ]
    for seat in (0, 1):
        spent = set(bids[seat])
        items = [
            card(
                held + 1, dim=held in spent, mark=len(bids[seat]) > done and held == bids[seat][-1]
            )
            for held in range(size)
        ]
        rows.append({"title": seat, "items": items})
    won: list[list[Any]] = [
        [prize + 1, first + 1, second + 1]
        for prize, first, second in zip(prizes, bids[0], bids[1], strict=False)
    ]
    if over:  # the last round plays itself
        cards = set(range(size))
        won.append([(cards - set(played)).pop() + 1 for played in (prizes, *bids)])
    points = [sum(p for p, *b in won if b[seat] > b[1 - seat]) for seat in (0, 1)]
    return {"rows": rows, "facts": [["points", f"{points[0]} : {points[1]}"]], "rounds": won}


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split())
    except ValueError:
        raise StateTextError(f"expected numbers separated by spaces, got {text!r}") from None


def split_ascending(digits: str, count: int) -> tuple[int, ...]:
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


def match_prize(text: str, seat: int, rng: Random) -> int:
    """The card of the prize's value; when it is gone the nearest one, the lower of two."""
    state = parse_state(text)
    return min(state.hands[seat], key=lambda held: (abs(held - state.prize), held)) - 1


def lowest(text: str, seat: int, rng: Random) -> int:
    """The lowest card."""
    return min(parse_state(text).hands[seat]) - 1


def highest(text: str, seat: int, rng: Random) -> int:
    """The highest card."""
    return max(parse_state(text).hands[seat]) - 1


POLICIES: dict[str, Rule] = {"match": match_prize, "highest": highest, "lowest": lowest}

MATCH = ReferenceScore(
    "match (bid = prize)",
    0.954,
    {8: 0.924, 10: 0.942, 12: 0.957, 14: 0.968, 16: 0.976},
    policy="match",
)
REFERENCES = (
    ReferenceScore(RANDOM, 0.50, {8: 0.499, 10: 0.500, 12: 0.500, 14: 0.499, 16: 0.499}),
    MATCH,
    ReferenceScore("best response", 0.958, {8: 0.9317, 10: 0.9480, 12: 0.96, 14: 0.97, 16: 0.98}),
)
"""Means of 400,000 games each; `python -m miner evaluate policy=match environment.channel=builtin`
plays as many as are asked for. Best responses of 8 and 10 cards are exact, by dynamic programming
over the prizes left, both hands and the lead, in a program that is not kept; those of 12, 14 and 16
cards are estimates."""


GOOFSPIEL = Game(
    name="goofspiel",
    block=0,
    rules=(
        "Two players hold the same bid cards, 1 to N. The prize cards 1 to N come up one by one "
        "in random order. In each round both players bid one card from their hand at the same "
        "time. The higher bid wins the prize's value in points; equal bids win nothing. Bid "
        "cards are spent. Whoever has more points after the last round wins."
    ),
    draw=_draw,
    server_parameters=_server_parameters,
    duel_parameters=_duel_parameters,
    server_text=_server_text,
    duel_text=_duel_text,
    server_label=_server_label,
    sizes=DECK_SIZES,
    duel_sizes=DUEL_CARDS,
    policies=POLICIES,
    references=REFERENCES,
    read_turn=turn_shown,
)
