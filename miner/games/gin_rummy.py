"""Gin rummy: hands of 7 to 9 cards, knocking from 8 to 10 points of deadwood.

With hands of eight a player who knocks while holding three melds of three has no legal action
left; the tournament scores such a game as a draw.
"""

import re

import pyspiel

from miner.games.base import Game, Parameters, Scene
from miner.games.drawing import suited

_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)
_SUITS = {"s": "♠", "c": "♣", "d": "♦", "h": "♥"}


def _parameters(configuration: int) -> Parameters:
    return {"hand_size": 7 + configuration // 3 % 3, "knock_card": 10 - configuration % 3}


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    views = [state.observation_string(seat) for seat in (0, 1)]
    rows: list[Scene] = []
    for seat, view in enumerate(views):
        block = _ROW.findall(view)[4 * seat : 4 * seat + 4]
        rows.append({"title": seat, "items": [card for line in block for card in _cards(line)]})
    upcard = _field(views[0], r"Upcard: (\S\S)")
    pile = _field(views[0], r"Discard pile: (\S*)")
    open_cards = [] if upcard == "XX" else [_card(upcard, mark=True)]
    rows.insert(1, {"title": "open", "items": open_cards + _cards(pile)[::-1][:6]})
    melds = re.findall(r"Layed melds: (.*)", views[0] + views[1])
    if melds:
        laid = list(dict.fromkeys(meld for line in melds for meld in line.split()))
        rows += [{"title": "meld", "items": _cards(meld)} for meld in laid]
    deadwood = [_field(view, rf"Player{seat}: Deadwood=(\d+)") for seat, view in enumerate(views)]
    facts = [
        ["phase", _field(views[0], r"Phase: (\w+)")],
        ["stock", _field(views[0], r"Stock size: (\d+)")],
        ["deadwood", " : ".join(points or "-" for points in deadwood)],
        ["knock with", _field(views[0], r"Knock card: (\d+)")],
    ]
    return {"rows": rows, "facts": facts}


def _cards(text: str) -> list[Scene]:
    return [_card(card) for card in re.findall(r"[A2-9TJQK][scdh]", text)]


def _card(card: str, *, mark: bool = False) -> Scene:
    return suited(card[0].replace("T", "10") + _SUITS[card[1]], mark=mark)


def _field(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found.group(1) if found else ""


GIN_RUMMY = Game(
    name="gin_rummy",
    block=3,
    rules=(
        "Players hold cards and try to arrange them in melds: three or more of one rank, or runs "
        "of three or more in one suit. Each turn: draw from the stock or the discard pile, then "
        "discard. Cards outside melds are deadwood. A player with little enough deadwood may "
        "knock; the lower deadwood wins the difference, with a bonus for none at all."
    ),
    draw=_draw,
    server_parameters=_parameters,
    duel_parameters=_parameters,
    search=(500, 10),
)
