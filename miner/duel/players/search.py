"""Monte Carlo tree search and exact strategies, by OpenSpiel.

The search is the tournament's baseline: UCT with c = 2 and one random rollout a leaf, on the true
state, so that it sees hidden cards and bids.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pyspiel

from miner.beside import check_wanted
from miner.duel.players.rules import Choice
from miner.duel.turn import Request
from miner.games import Game
from miner.games.search import search_bot

UCT_C = 2.0
CFR_ITERATIONS = 200


def search(simulations: int) -> Choice:
    """Moves by a search with this number of simulations."""

    def choose(request: Request) -> int:
        table = request.table
        legal = request.legal
        if len(legal) == 1:
            return legal[0]
        seed = Random(f"{table.seed} {request.player} {table.state.history()}").getrandbits(31)
        bot = search_bot(table.loaded, UCT_C, simulations, (seed, seed))
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
