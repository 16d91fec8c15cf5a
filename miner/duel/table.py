"""A game under way: seeds, opening and chance as the tournament draws them.

Invariants:
* equal (game, seed) and equal actions give equal histories;
* a game's seed draws its configuration, its opening and all of its chance, each by a generator of
  its own, so that no player's action moves another's draws.
"""

from collections.abc import Hashable, Iterator
from random import Random

import pyspiel

from miner.config.contract import LARGEST_GRADER_SEED
from miner.environments.games.opponents import ChanceStream
from miner.games import Game

_OPENING_PLIES = (2, 6)
"""Fewest and most."""


def game_seeds(evaluation_seed: int) -> Iterator[int]:
    """Seeds of a match's pairs of games, without end; each is played twice, seats swapped."""
    rng = Random(evaluation_seed)
    while True:
        yield rng.randint(1, LARGEST_GRADER_SEED)


def configuration_of(game: Game, seed: int) -> int:
    """The configuration number, within the game's own, that a game's seed draws."""
    first, last = game.task_ids
    return Random(seed).randint(first, last) - first


class Table:
    """One game from its opening to its end.

    Args:
        game: the game to play.
        seed: a seed of `game_seeds`.

    Attributes:
        opening: random actions played before the players', part of the history.
        generators: random numbers of our own players, for the length of the game.
    """

    __slots__ = ("_chance", "game", "generators", "loaded", "opening", "seed", "state")

    def __init__(self, game: Game, seed: int) -> None:
        self.game = game
        self.seed = seed
        self.loaded: pyspiel.Game = game.load_duel(configuration_of(game, seed))
        self.state: pyspiel.State = self.loaded.new_initial_state()
        self.generators: dict[Hashable, Random] = {}
        self._chance = ChanceStream(seed)
        self.opening = self._open() if game.random_opening else []
        self._draw()

    def apply(self, action: int) -> None:
        """Play a legal action of the player to move, and the chance after it."""
        self.state.apply_action(action)
        self._draw()

    def returns(self) -> list[float]:
        """Both players' at the end; zeros, a draw, where the player to move has no legal action."""
        return list(self.state.returns()) if self.state.is_terminal() else [0.0, 0.0]

    def text(self, player: int) -> str:
        """The state as `player` is shown it."""
        return self.game.duel_text(self.state, player)

    def label(self, player: int, action: int) -> str:
        """A legal action in words."""
        return str(self.state.action_to_string(player, action))

    def forfeit_returns(self, player: int) -> list[float]:
        """Both players' returns when `player` forfeits: the lowest and the highest there are."""
        returns = [self.loaded.max_utility()] * 2
        returns[player] = self.loaded.min_utility()
        return returns

    def _open(self) -> list[int]:
        rng = Random(self.seed)
        played: list[int] = []
        for _ in range(rng.randint(*_OPENING_PLIES)):
            if self.state.is_terminal():
                break
            played.append(rng.choice(self.state.legal_actions()))
            self.state.apply_action(played[-1])
        return played

    def _draw(self) -> None:
        state = self.state
        while state.is_chance_node():
            state.apply_action(self._chance.draw(state.chance_outcomes()))
