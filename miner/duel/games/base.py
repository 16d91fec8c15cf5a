"""What a game of the tournament is: its configurations, its opening and the text of a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyspiel

Parameters = dict[str, int | str | bool]

_CONFIGURATIONS = 100_000_000
"""Configuration numbers of one game; game number b owns those from b times this."""


@dataclass(frozen=True, slots=True)
class DuelGame:
    """One of the six games.

    Attributes:
        name: OpenSpiel's short name, and the tournament's.
        block: which hundred million of configuration numbers is the game's.
        parameters: OpenSpiel's parameters for a configuration number.
        state_text: what a player is shown of a state, decided or not.
        simultaneous: OpenSpiel's game has no turns and is wrapped, so that bids follow each other.
        random_opening: begins with a few random moves, so that deterministic players play more
            than one game.
    """

    name: str
    block: int
    parameters: Callable[[int], Parameters]
    state_text: Callable[[pyspiel.State, int], str]
    simultaneous: bool = False
    random_opening: bool = False

    @property
    def configurations(self) -> tuple[int, int]:
        """First and last configuration number, of which a game's seed draws one."""
        first = self.block * _CONFIGURATIONS
        return first, first + _CONFIGURATIONS - 1

    def load(self, configuration: int) -> LoadedDuelGame:
        """The game with this configuration number (equal parameters share one object)."""
        parameters = self.parameters(configuration % _CONFIGURATIONS)
        return _load(self.name, self.simultaneous, tuple(parameters.items()))


@dataclass(frozen=True, slots=True)
class LoadedDuelGame:
    """An OpenSpiel game with what scoring asks of it.

    Attributes:
        zero_sum: whether one player's return is the other's loss (so in all six).
        lowest_return, highest_return: bounds of a player's return; the middle is a draw.
    """

    game: pyspiel.Game
    zero_sum: bool
    lowest_return: float
    highest_return: float


@lru_cache(maxsize=256)
def _load(
    name: str, simultaneous: bool, parameters: tuple[tuple[str, int | str | bool], ...]
) -> LoadedDuelGame:
    load = pyspiel.load_game_as_turn_based if simultaneous else pyspiel.load_game
    game = load(name, dict(parameters))
    return LoadedDuelGame(
        game=game,
        zero_sum=game.get_type().utility == pyspiel.GameType.Utility.ZERO_SUM,
        lowest_return=game.min_utility(),
        highest_return=game.max_utility(),
    )
