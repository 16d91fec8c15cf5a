"""Othello on eight by eight squares; player 0 has the black discs, x."""

import pyspiel

from miner.games.base import Game, Parameters, Scene
from miner.games.drawing import board

SIZE = 8
_COLOURS = ("x (Black)", "o (White)")


def _parameters(configuration: int) -> Parameters:
    return {}


def _duel_text(state: pyspiel.State, player: int) -> str:
    return f"You play {_COLOURS[player]}.\n{state.observation_string(player)}"


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    lines = state.observation_string(0).splitlines()
    cells = [line.split()[1 : 1 + SIZE] for line in lines[2 : 2 + SIZE]]
    marks = [divmod(action, SIZE)] if action is not None and action < SIZE * SIZE else []
    counts = [sum(row.count(disc) for row in cells) for disc in "xo"]
    return {
        "board": board("othello", cells, marks, [str(i + 1) for i in range(SIZE)]),
        "facts": [["black", counts[0]], ["white", counts[1]]],
    }


OTHELLO = Game(
    name="othello",
    block=4,
    rules=(
        "On an 8 by 8 board players place discs so that one or more of the opponent's discs are "
        "enclosed in a straight line; enclosed discs turn over. A player without such a move "
        "passes. The game ends when nobody can move; more discs win."
    ),
    draw=_draw,
    server_parameters=_parameters,
    duel_parameters=_parameters,
    duel_text=_duel_text,
    search=(1000, 20),
    random_opening=True,
)
