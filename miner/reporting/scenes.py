"""Scenes of a game to step through: one before the first move, and one after each."""

import re
from collections.abc import Iterable, Sequence

import pyspiel

from miner.games import Game, Scene


def scenes(
    game: Game,
    loaded: pyspiel.Game,
    history: Sequence[int],
    *,
    opening: int = 0,
    details: Iterable[Scene] = (),
) -> list[Scene]:
    """Return the positions between the moves of `history`, with both hands.

    Args:
        loaded: the game, in which moves follow each other.
        history: all actions, those of chance included.
        opening: actions before the first move that is shown.
        details: for each move what its scene shows besides: "said", "notes".
    """
    state, more = loaded.new_initial_state(), iter(details)
    shown: list[Scene] = []
    latest, move = None, Scene()
    for number, action in enumerate(history):
        mover = state.current_player()
        if number >= opening and mover >= 0:
            shown.append(game.draw(state, latest) | move)
            label = _short(state.action_to_string(mover, action))
            latest, move = action, {"mover": mover, "move": label} | next(more, {})
        state.apply_action(action)
    return [*shown, game.draw(state, latest) | move]


def _short(label: str) -> str:
    """An engine's label without the player it names."""
    return re.sub(r"^(\[P\d\]|Player: \d Action: )", "", label)
