"""Clobber: on servers on squares of 5 to 7, in duels on 4x5, 5x5 or 5x6; player 0 is o."""

import pyspiel

from miner.config.contract import DUEL_BOARDS
from miner.games.base import Game, Parameters, Scene
from miner.games.drawing import board

Square = tuple[int, int]
"""Row and column."""

_COLOURS = ("o (White)", "x (Black)")
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Directions as rows and columns: up, right, down, left."""


def _server_parameters(configuration: int) -> Parameters:
    size = 5 + configuration % 3
    return {"rows": size, "columns": size}


def _duel_parameters(configuration: int) -> Parameters:
    rows, columns = DUEL_BOARDS[configuration % len(DUEL_BOARDS)].split("x")
    return {"rows": int(rows), "columns": int(columns)}


def _duel_text(state: pyspiel.State, player: int) -> str:
    return f"You play {_COLOURS[player]}.\n{state.observation_string(player)}"


def squares(action: int, columns: int) -> tuple[Square, Square]:
    """The square that a move leaves and the one that it takes, from the top left."""
    row, column = divmod(action // 4, columns)
    down, right = STEPS[action % 4]
    return (row, column), (row + down, column + right)


def _draw(state: pyspiel.State, action: int | None) -> Scene:
    lines = [line for line in state.observation_string(0).splitlines() if line.strip()][:-1]
    cells = [list(line[1:]) for line in lines]
    marks = [] if action is None else squares(action, len(cells[0]))
    movable = len(state.legal_actions()) if not state.is_terminal() else 0
    return {
        "board": board("clobber", cells, marks, [line[0] for line in lines]),
        "facts": [["moves to choose from", movable]],
    }


CLOBBER = Game(
    name="clobber",
    block=7,
    rules=(
        "The board starts full of alternating stones. A move takes one of your stones onto a "
        "neighbouring stone of the opponent (up, down, left or right), which is removed. The "
        "player who cannot move loses."
    ),
    draw=_draw,
    server_parameters=_server_parameters,
    duel_parameters=_duel_parameters,
    duel_text=_duel_text,
    search=(1500, 100),
    random_opening=True,
    duel_sizes=DUEL_BOARDS,
)
