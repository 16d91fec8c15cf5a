"""Leduc poker: six cards, two rounds of betting, one public card between them.

The servers' text of the first betting round equals the recorded one; of the second none was
recorded.
"""

import re

import pyspiel

from miner.games.base import Game, Parameters, Scene
from miner.games.drawing import suited

_FIELD = re.compile(r"\[(\w+):? ([^\]]*)\]")
_RANKS = "JQK"
_SUITS = "♠♥"
_BETS = ("Fold", "Call", "Raise")

_DUEL_WORDS = {
    "Hand: Pair": "Hand: PAIR",
    "Current round:": "Round:",
    "Pot size:": "Pot:",
    " betting:": " actions:",
    "\nYour turn to act": "",
}
"""The servers' words and those of duels, which differ where lines are alike."""


def _parameters(configuration: int) -> Parameters:
    return {"players": 2}


def _server_text(state: pyspiel.State, player: int) -> str:
    """From e.g. `[Private: 3][Round 1][Pot: 2][Money: 99 99][Round1: 1 2][Round2: ]`."""
    fields = _fields(state, player)
    chips = fields["Money"].split()
    lines = [f"Your card: {_card(fields['Private'])}"]
    if "Public" in fields:
        lines.append(f"Public card: {_card(fields['Public'])}")
        if int(fields["Public"]) // 2 == int(fields["Private"]) // 2:
            lines.append("Hand: Pair")
    lines += [
        f"Current round: {fields['Round']}/2",
        f"Pot size: {fields['Pot']} chips",
        f"Your chips: {chips[player]}",
        f"Opponent chips: {chips[1 - player]}",
    ]
    for number in "12":
        if bets := _bets(fields, number):
            lines.append(f"Round {number} betting: {bets}")
    return "\n".join([*lines, "Your turn to act"])


def _duel_text(state: pyspiel.State, player: int) -> str:
    text = _server_text(state, player)
    for theirs, ours in _DUEL_WORDS.items():
        text = text.replace(theirs, ours)
    return text


def _fields(state: pyspiel.State, player: int) -> dict[str, str]:
    """The parts of an information state by their names, such as Private."""
    return dict(_FIELD.findall(state.information_state_string(player)))


def _card(number: str) -> str:
    """A card as it is shown, such as `J♠` for 0."""
    rank, suit = divmod(int(number), 2)
    return _RANKS[rank] + _SUITS[suit]


def _bets(fields: dict[str, str], number: str) -> str:
    return ", ".join(_BETS[int(bet)] for bet in fields[f"Round{number}"].split())


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    fields = [_fields(state, seat) for seat in (0, 1)]
    rows: list[Scene] = [
        {"title": seat, "items": [suited(_card(fields[seat]["Private"]))]} for seat in (0, 1)
    ]
    public = fields[0].get("Public")
    open_cards = [suited(_card(public))] if public else [{"back": True}]
    rows.insert(1, {"title": "open", "items": open_cards})
    facts = [["pot", fields[0]["Pot"]], ["chips", " : ".join(fields[0]["Money"].split())]]
    facts += [[f"round {number}", _bets(fields[0], number) or "-"] for number in "12"]
    return {"rows": rows, "facts": facts}


LEDUC_POKER = Game(
    name="leduc_poker",
    block=2,
    rules=(
        "The deck has two jacks, two queens and two kings. Each player pays an ante of one chip "
        "and gets one private card. There are two betting rounds with at most two raises each "
        "(2 chips in the first, 4 in the second); between them one public card is turned up. A "
        "private card that pairs the public one wins, otherwise the higher card."
    ),
    draw=_draw,
    server_parameters=_parameters,
    duel_parameters=_parameters,
    server_text=_server_text,
    duel_text=_duel_text,
    search=(3000, 200),
)
