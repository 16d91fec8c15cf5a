"""The six games of the tournament, one module each.

Another one: its name in `miner.config.contract.GameName`, a module here with a `Game`, its place in
`GAMES`, and for duels a teacher in `miner.duel.teachers` and its costs in `entrypoint.workload`.

A task id is a block number (the game) times 100,000,000 plus a configuration number. Block numbers
repeat every `_CYCLE` blocks, as measured on the real server. Goofspiel's, Liar's dice's and Leduc
poker's parameters on servers were recorded there, for gin rummy and Clobber one configuration each
(hand 7, knock 10; 5 by 5). The variation of the latter two and all search budgets follow the
server's public source; they were not recorded.
"""

from miner.config.errors import ConfigurationError
from miner.games.base import BLOCK, RANDOM, Game, ReferenceScore, Scene, StateTextError, Turn
from miner.games.clobber import CLOBBER
from miner.games.gin_rummy import GIN_RUMMY
from miner.games.goofspiel import GOOFSPIEL
from miner.games.leduc_poker import LEDUC_POKER
from miner.games.liars_dice import LIARS_DICE
from miner.games.othello import OTHELLO

_CYCLE = 22

GAMES = {
    game.name: game for game in (GOOFSPIEL, LIARS_DICE, LEDUC_POKER, GIN_RUMMY, OTHELLO, CLOBBER)
}
"""By name, in the order of the blocks of duels."""


def game_named(name: str) -> Game:
    """The game called `name`. Raises: `ConfigurationError` for any other name."""
    if name not in GAMES:
        raise ConfigurationError(
            f"{name!r} is not a game of the tournament: choose from {', '.join(GAMES)}"
        )
    return GAMES[name]


def game_of(task_id: int) -> Game:
    """The game that a server's task id names. Raises: `ConfigurationError` for any other."""
    block = (task_id // BLOCK) % _CYCLE
    for game in GAMES.values():
        if game.block == block:
            return game
    known = ", ".join(f"{game.block} ({game.name})" for game in GAMES.values())
    raise ConfigurationError(
        f"task_id {task_id} names game block {block}, expected one of {known}: choose a task_id "
        "of one of these games"
    )


def deck_size(environment: str, task_id: int) -> int | None:
    """Deck size of a game on servers; None for games, and for environments, that have none."""
    game = GAMES.get(environment)
    return game.size(task_id) if game else None


__all__ = [
    "GAMES",
    "RANDOM",
    "Game",
    "ReferenceScore",
    "Scene",
    "StateTextError",
    "Turn",
    "deck_size",
    "game_named",
    "game_of",
]
