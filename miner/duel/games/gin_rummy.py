"""Gin rummy: hands of 7 to 9 cards, knocking from 8 to 10 points of deadwood.

With hands of eight a player who knocks while holding three melds of three has no legal action
left; the tournament scores such a game as a draw.
"""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters


def _parameters(configuration: int) -> Parameters:
    return {"hand_size": 7 + configuration // 3 % 3, "knock_card": 10 - configuration % 3}


def _state_text(state: pyspiel.State, player: int) -> str:
    return str(state.observation_string(player))


GIN_RUMMY = DuelGame("gin_rummy", _parameters, _state_text)
