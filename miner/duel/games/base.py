"""What a game of the tournament is: its configurations, its opening and the text of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyspiel

Parameters = dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class DuelGame:
    """One of the six games.

    Attributes:
        name: OpenSpiel's short name, and the tournament's.
        parameters: OpenSpiel's parameters for a configuration number.
        state_text: what a player is shown of a state, decided or not.
        random_opening: begins with a few random moves, so that deterministic players play more
            than one game.
    """

    name: str
    parameters: Callable[[int], Parameters]
    state_text: Callable[[pyspiel.State, int], str]
    random_opening: bool = False

    def load(self, configuration: int) -> pyspiel.Game:
        """OpenSpiel's game with this configuration number (equal parameters share one object).

        A game without turns is wrapped, so that bids follow each other.
        """
        return _load(self.name, tuple(self.parameters(configuration).items()))


@lru_cache(maxsize=256)
def _load(name: str, parameters: tuple[tuple[str, int | str | bool], ...]) -> pyspiel.Game:
    return pyspiel.load_game_as_turn_based(name, dict(parameters))
