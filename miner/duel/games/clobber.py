"""Clobber on 4x5, 5x5 or 5x6 squares; player 0 has the white pieces, o."""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters

BOARDS = ((4, 5), (5, 5), (5, 6))
"""Rows and columns."""

_COLOURS = ("o (White)", "x (Black)")


def _parameters(configuration: int) -> Parameters:
    rows, columns = BOARDS[configuration % len(BOARDS)]
    return {"rows": rows, "columns": columns}


def _state_text(state: pyspiel.State, player: int) -> str:
    return f"You play {_COLOURS[player]}.\n{state.observation_string(player)}"


CLOBBER = DuelGame("clobber", _parameters, _state_text, random_opening=True)
