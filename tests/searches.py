"""Search budgets of the servers' "mcts" opponent."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from miner.games import GAMES


@contextmanager
def searches_of(simulations: int, rollouts: int) -> Iterator[None]:
    """Within the context, games that servers search have this budget in the place of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, game in list(GAMES.items()):
            if any(game.search):
                patch.setitem(GAMES, name, replace(game, search=(simulations, rollouts)))
        yield
