"""Othello on eight by eight squares; player 0 has the black discs, x."""

from __future__ import annotations

import pyspiel

from miner.duel.games.base import DuelGame, Parameters

SIZE = 8
_COLOURS = ("x (Black)", "o (White)")


def _parameters(configuration: int) -> Parameters:
    return {}


def _state_text(state: pyspiel.State, player: int) -> str:
    return f"You play {_COLOURS[player]}.\n{state.observation_string(player)}"


OTHELLO = DuelGame("othello", _parameters, _state_text, random_opening=True)
