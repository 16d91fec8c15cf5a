"""Which game a task id names, with which OpenSpiel parameters.

A task id is a block number (the game) times 100,000,000 plus a configuration number. Block
numbers repeat every `_CYCLE` blocks, as measured on the real server.

Goofspiel's, Liar's dice's and Leduc poker's parameters were recorded from the real server, for gin
rummy and Clobber one configuration each (hand 7, knock 10; 5 by 5). The variation of the latter
two by configuration number and all search budgets follow the server's public source; they were not
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyspiel

from miner.config.contract import GAMES
from miner.config.errors import ConfigurationError
from miner.environments.games import goofspiel

_BLOCK = 100_000_000
_CYCLE = 22

Parameters = dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class GameSpec:
    """What the server does differently from game to game.

    Attributes:
        name: OpenSpiel's short name.
        block: task ids from `block * 100,000,000` belong to this game.
        parameters: OpenSpiel parameters for a configuration number.
        mcts_max_simulations: search budget per move of the "mcts" opponent; 0 in Goofspiel,
            where that opponent does not search.
        mcts_num_rollouts: random rollouts per evaluated leaf of the "mcts" opponent.
    """

    name: str
    block: int
    parameters: Callable[[int], Parameters]
    mcts_max_simulations: int
    mcts_num_rollouts: int


def _goofspiel(config: int) -> Parameters:
    return {"players": 2, "num_cards": goofspiel.deck_size(config), "points_order": "random"}


def _liars_dice(config: int) -> Parameters:
    return {"players": 2, "numdice": 5}


def _leduc_poker(config: int) -> Parameters:
    return {"players": 2}


def _gin_rummy(config: int) -> Parameters:
    return {"hand_size": 7 + config // 3 % 3, "knock_card": 10 - config % 3}


def _othello(config: int) -> Parameters:
    return {}


def _clobber(config: int) -> Parameters:
    size = 5 + config % 3
    return {"rows": size, "columns": size}


_SPECS = (
    GameSpec("goofspiel", 0, _goofspiel, 0, 0),
    GameSpec("liars_dice", 1, _liars_dice, 3000, 200),
    GameSpec("leduc_poker", 2, _leduc_poker, 3000, 200),
    GameSpec("gin_rummy", 3, _gin_rummy, 500, 10),
    GameSpec("othello", 4, _othello, 1000, 20),
    GameSpec("clobber", 7, _clobber, 1500, 100),
)
_BY_BLOCK = {spec.block: spec for spec in _SPECS}
_BY_NAME = {spec.name: spec for spec in _SPECS}


def game_spec(task_id: int) -> GameSpec:
    """The game that `task_id` names. Raises: `ConfigurationError` for an unsupported game."""
    block = (task_id // _BLOCK) % _CYCLE
    try:
        return _BY_BLOCK[block]
    except KeyError:
        raise ConfigurationError(
            f"task_id {task_id} names game block {block}, which is none of "
            f"{', '.join(f'{spec.block} ({spec.name})' for spec in _SPECS)}: choose a task_id "
            "of one of these games"
        ) from None


def game_name_of(task_id: int) -> str:
    """Name of the game that `task_id` names. Raises: `ConfigurationError`."""
    return game_spec(task_id).name


def task_id_range(name: str) -> tuple[int, int]:
    """Smallest and largest task id of a game. Raises: `ConfigurationError` for unknown names."""
    try:
        first = _BY_NAME[name].block * _BLOCK
    except KeyError:
        raise ConfigurationError(
            f"unknown game {name!r}: expected one of {', '.join(GAMES)}"
        ) from None
    return first, first + _BLOCK - 1


@dataclass(frozen=True, slots=True)
class LoadedGame:
    """An OpenSpiel game with what never changes about it.

    Attributes:
        spec: the catalog's entry.
        game: the OpenSpiel game; states hold on to it, nobody changes it.
        simultaneous: whether both players move at once.
    """

    spec: GameSpec
    game: pyspiel.Game
    simultaneous: bool


def load_game(task_id: int) -> LoadedGame:
    """The game of `task_id`; equal configurations share one object.

    Raises: `ConfigurationError` for an unsupported game.
    """
    spec = game_spec(task_id)
    parameters = spec.parameters(task_id % _BLOCK)
    return _load(spec, tuple(sorted(parameters.items())))


@lru_cache(maxsize=256)
def _load(spec: GameSpec, parameters: tuple[tuple[str, int | str | bool], ...]) -> LoadedGame:
    game = pyspiel.load_game(spec.name, dict(parameters))
    dynamics = game.get_type().dynamics
    return LoadedGame(spec, game, dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS)
