"""Goofspiel: 5 to 13 cards, bids one after the other, the second without sight of the first.

Equal bids discard the prize, and the last round plays itself, whatever a rules text says. A card's
action id is its value minus one.
"""

from __future__ import annotations

import re

import pyspiel

from miner.config.contract import DUEL_CARDS
from miner.duel.games.base import DuelGame, Parameters

_PRIZE = re.compile(r"Current point card: (\d+)")


def _parameters(configuration: int) -> Parameters:
    return {
        "players": 2,
        "num_cards": DUEL_CARDS[configuration % len(DUEL_CARDS)],
        "imp_info": True,
        "points_order": "random",
        "returns_type": "win_loss",
    }


def _state_text(state: pyspiel.State, player: int) -> str:
    return f"You are Player {player} (P{player}).\n{state.observation_string(player)}"


def prize_value(state_text: str) -> int:
    """Value of the prize that a state text shows. Raises: `ValueError` where it shows none."""
    found = _PRIZE.search(state_text)
    if found is None:
        raise ValueError(f"no current point card is shown in {state_text[:120]!r}")
    return int(found.group(1))


GOOFSPIEL = DuelGame("goofspiel", _parameters, _state_text)
