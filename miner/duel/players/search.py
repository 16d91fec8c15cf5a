"""Monte Carlo tree search and exact strategies, by OpenSpiel.

The search is the tournament's baseline: UCT with c = 2 and one random rollout a leaf, on the true
state, so that it sees hidden cards and bids.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python.algorithms import mcts

from miner.beside import check_wanted
from miner.duel.players.rules import Choice
from miner.duel.turn import Request
from miner.games import Game

UCT_C = 2.0
CFR_ITERATIONS = 200
CAREFUL_SIMULATIONS = 10

_MEMORY_MB = 64


def search(simulations: int) -> Choice:
    """Moves by a search with this number of simulations."""

    def choose(request: Request) -> int:
        table = request.table
        legal = request.legal
        if len(legal) == 1:
            return legal[0]
        seed = Random(f"{table.seed} {request.player} {table.state.history()}").getrandbits(31)
        if _can_get_stuck(table.loaded):
            return _careful_search(table.loaded, table.state, simulations, seed)
        evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
        bot = pyspiel.MCTSBot(
            table.loaded, evaluator, UCT_C, simulations, _MEMORY_MB, False, seed, False
        )
        return int(bot.step(table.state))

    return choose


def equilibrium(iterations: int = CFR_ITERATIONS) -> Choice:
    """Moves drawn from a strategy close to the game's equilibrium (for small games: Leduc)."""

    def choose(request: Request) -> int:
        table = request.table
        policy = _average_policy(table.game, iterations)
        odds = policy.action_probabilities(table.state)
        rng = Random(f"{table.seed} {request.player} {table.state.history()}")
        return rng.choices(list(odds), list(odds.values()))[0]

    return choose


@cache
def _average_policy(game: Game, iterations: int) -> Any:
    """The average strategy of CFR+ (Tammelin 2014)."""
    solver = pyspiel.CFRPlusSolver(game.load_duel(0))
    for _ in range(iterations):
        check_wanted()
        solver.evaluate_and_update_policy()
    return solver.tabular_average_policy()


def _can_get_stuck(game: pyspiel.Game) -> bool:
    """Gin rummy with hands of eight has positions without a legal action, which end the process
    when OpenSpiel's own search comes upon one."""
    return bool(game.get_parameters().get("hand_size") == 8)


def _careful_search(game: pyspiel.Game, state: pyspiel.State, simulations: int, seed: int) -> int:
    """The same search in Python, where a position without a legal action is a draw; it is slow,
    and so has at most `CAREFUL_SIMULATIONS`."""
    rng = np.random.RandomState(seed)
    evaluator = _Rollouts(rng)
    simulations = min(simulations, CAREFUL_SIMULATIONS)
    bot = mcts.MCTSBot(game, UCT_C, simulations, evaluator, solve=False, random_state=rng)
    return int(bot.step(_EndsWhenStuck(state)))


class _Rollouts(mcts.RandomRolloutEvaluator):
    """One random rollout a leaf, for as long as the move is wanted."""

    def __init__(self, rng: np.random.RandomState) -> None:
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
