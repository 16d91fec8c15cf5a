"""Monte Carlo tree search with random rollouts, where OpenSpiel's would end the process too."""

from __future__ import annotations

from typing import Any

import pyspiel
from numpy.random import RandomState
from open_spiel.python.algorithms import mcts

from miner.beside import check_wanted

CAREFUL_SIMULATIONS = 10

_MEMORY_MB = 64


def search_bot(
    game: pyspiel.Game, uct_c: float, simulations: int, seeds: tuple[int, int], rollouts: int = 1
) -> Any:
    """A bot whose `step` searches a state of `game` for the action that it visits most.

    Args:
        seeds: of the rollouts, and of the search.
        rollouts: of a leaf.
    """
    if _can_get_stuck(game):
        return _CarefulBot(game, uct_c, simulations, seeds[0])
    evaluator = pyspiel.RandomRolloutEvaluator(rollouts, seeds[0])
    return pyspiel.MCTSBot(game, evaluator, uct_c, simulations, _MEMORY_MB, False, seeds[1], False)


def _can_get_stuck(game: pyspiel.Game) -> bool:
    """Gin rummy with hands of eight has positions without a legal action, which end the process
    when OpenSpiel's own search comes upon one."""
    return bool(game.get_parameters().get("hand_size") == 8)


class _CarefulBot:
    """The same search in Python, where a position without a legal action is a draw; it is slow, and
    so has at most `CAREFUL_SIMULATIONS`, of one random rollout a leaf."""

    def __init__(self, game: pyspiel.Game, uct_c: float, simulations: int, seed: int) -> None:
        rng = RandomState(seed)
        most = min(simulations, CAREFUL_SIMULATIONS)
        self._bot = mcts.MCTSBot(game, uct_c, most, _Rollouts(rng), solve=False, random_state=rng)

    def step(self, state: pyspiel.State) -> int:
        return int(self._bot.step(_EndsWhenStuck(state)))


class _Rollouts(mcts.RandomRolloutEvaluator):
    """One random rollout a leaf, for as long as the move is wanted."""

    def __init__(self, rng: RandomState) -> None:
        super().__init__(1, rng)

    def evaluate(self, state: Any) -> Any:
        check_wanted()
        return super().evaluate(state)


class _EndsWhenStuck:
    """A state that is also over, as a draw, where no move is legal."""

    def __init__(self, state: pyspiel.State) -> None:
        self._state = state
        self._stuck = not state.is_terminal() and not state.legal_actions()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def clone(self) -> _EndsWhenStuck:
        return _EndsWhenStuck(self._state.clone())

    def apply_action(self, action: int) -> None:
        self._state.apply_action(action)
        self._stuck = not self._state.is_terminal() and not self._state.legal_actions()

    def is_terminal(self) -> bool:
        return self._stuck or self._state.is_terminal()

    def returns(self) -> list[float]:
        return [0.0, 0.0] if self._stuck else self._state.returns()
