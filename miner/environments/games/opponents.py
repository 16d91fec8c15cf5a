"""The players that the server seats against the agent, and the random streams that drive a game.

Invariants: equal (task_id, seed, stream) give equal chance events and an equal opponent stream,
for all actions of the agent; the two streams of a mode never share a generator.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Literal, Protocol

import numpy as np
import pyspiel

from miner.config.errors import ConfigurationError
from miner.games import Game
from miner.games.search import search_bot

Stream = Literal["train", "evaluate"]
OPPONENTS = ("random", "mcts")


class Opponent(Protocol):
    """Chooses a legal action of one player."""

    def act(self, state: pyspiel.State, player: int) -> int:
        """An action of `player` in `state`."""


class RandomOpponent:
    """Uniform over the legal actions, drawn as an index into their ascending list."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.RandomState(seed)

    def act(self, state: pyspiel.State, player: int) -> int:
        """A uniformly random legal action of `player`."""
        legal = state.legal_actions(player)
        # What RandomState.choice(legal) does, without building an array of the actions.
        return legal[self._rng.randint(0, len(legal))]


class MctsOpponent:
    """OpenSpiel's Monte Carlo tree search with uniformly random rollouts; a smaller one in games in
    which that may end the process, as it does servers'."""

    def __init__(self, game: pyspiel.Game, seed: int, simulations: int, rollouts: int) -> None:
        seeds = seed % 2**31, (seed + 1) % 2**31
        self._bot = search_bot(game, 1.414, simulations, seeds, rollouts)

    def act(self, state: pyspiel.State, player: int) -> int:
        """The action that the search visited most."""
        return int(self._bot.step(state))


class ChanceStream:
    """Draws chance outcomes as the server does, by inverting the cumulative distribution."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.RandomState(seed)

    def draw(self, outcomes: Sequence[tuple[int, float]]) -> int:
        """One of OpenSpiel's (action, probability) pairs: its action."""
        actions, probabilities = zip(*outcomes, strict=True)
        return actions[bisect_right(_cumulative(probabilities), self._rng.random_sample())]


@lru_cache(maxsize=1024)
def _cumulative(probabilities: tuple[float, ...]) -> list[float]:
    """Cumulative distribution with the rounding of numpy's `RandomState.choice`."""
    sums = list(accumulate(probabilities))
    return [value / sums[-1] for value in sums]


def chance_seed(seed: int, stream: Stream) -> int:
    """Seed of the generator of prizes, cards and dice."""
    return seed + 100 if stream == "train" else seed


def opponent_seed(seed: int, stream: Stream, player: int) -> int:
    """Seed of the generator of the opponent that plays `player`."""
    return seed + 2 if stream == "train" else seed + 4 + player


def make_opponent(name: str, game: Game, loaded: pyspiel.Game, seed: int) -> Opponent:
    """The opponent `name`, seeded. In games that servers do not search every name means random.

    Raises: `ConfigurationError` for a name that is not one of `OPPONENTS`.
    """
    simulations, rollouts = game.search
    if not simulations or name == "random":
        return RandomOpponent(seed)
    if name == "mcts":
        return MctsOpponent(loaded, seed, simulations, rollouts)
    raise ConfigurationError(
        f"unknown opponent {name!r} for {game.name}: expected one of {', '.join(OPPONENTS)}"
    )
