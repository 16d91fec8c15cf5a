"""The six games of the tournament over OpenSpiel, one module each.

Another one: a module here and a place in `GAMES`, its drawing in `miner.duel.report.scenes`, and in
`miner.duel.players.catalog` whoever plays it strongly.
"""

from miner.config.errors import ConfigurationError
from miner.duel.games.base import DuelGame
from miner.duel.games.clobber import CLOBBER
from miner.duel.games.gin_rummy import GIN_RUMMY
from miner.duel.games.goofspiel import GOOFSPIEL
from miner.duel.games.leduc_poker import LEDUC_POKER
from miner.duel.games.liars_dice import LIARS_DICE
from miner.duel.games.othello import OTHELLO
from miner.duel.games.table import Table

GAMES = {
    game.name: game for game in (GOOFSPIEL, LIARS_DICE, LEDUC_POKER, GIN_RUMMY, OTHELLO, CLOBBER)
}
"""By name, in the order of their configuration numbers."""


def duel_game(name: str) -> DuelGame:
    """The game called `name`. Raises: `ConfigurationError` for any other name."""
    if name not in GAMES:
        raise ConfigurationError(
            f"{name!r} is no game of the tournament: choose from {', '.join(GAMES)}"
        )
    return GAMES[name]


__all__ = ["GAMES", "DuelGame", "Table", "duel_game"]
