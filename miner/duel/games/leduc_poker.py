"""Leduc poker: six cards, two rounds of betting, one public card between them."""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters
from miner.environments.games.state_texts import state_text

_WORDS = {
    "Hand: Pair": "Hand: PAIR",
    "Current round:": "Round:",
    "Pot size:": "Pot:",
    " betting:": " actions:",
    "\nYour turn to act": "",
}
"""The servers' words and the tournament's, which are apart where lines are alike."""


def _parameters(configuration: int) -> Parameters:
    return {"players": 2}


def _state_text(state: pyspiel.State, player: int) -> str:
    text = state_text("leduc_poker", state, player)
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text


LEDUC_POKER = DuelGame("leduc_poker", _parameters, _state_text)
