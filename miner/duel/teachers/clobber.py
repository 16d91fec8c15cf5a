"""Clobber: a search with exact endings over the board that is shown; nothing is hidden."""

import pyspiel

from miner.duel.teachers.base import ByValue, Seen, Values
from miner.games import Game
from miner.games.clobber import CLOBBER

SIMULATIONS = 300
LATE_MOVES = 11
LATE_SIMULATIONS = 3000
"""With so few legal moves or fewer a search of this size solves half of the endings or more."""

_UCT_C = 2.0
_MEMORY_MB = 64


class ClobberTeacher(ByValue):
    """See the module."""

    def values(self, seen: Seen) -> Values:
        state = board(CLOBBER, seen)
        game = state.get_game()
        evaluator = pyspiel.RandomRolloutEvaluator(1, seen.seed)
        simulations = LATE_SIMULATIONS if len(seen.actions) <= LATE_MOVES else SIMULATIONS
        bot = pyspiel.MCTSBot(
            game, evaluator, _UCT_C, simulations, _MEMORY_MB, True, seen.seed, False
        )
        root = bot.mcts_search(state)
        values = dict.fromkeys(seen.actions, 0.0)
        for child in root.children:
            values[child.action] = _chance(child, seen.player, root.explore_count)
        return values


def board(game: Game, seen: Seen) -> pyspiel.State:
    """The state that is shown, with `seen.player` to move. Raises: `ValueError`."""
    rows = [line.lstrip("0123456789") for line in seen.state.splitlines() if line[:1].isdecimal()]
    if not rows or len({len(row) for row in rows}) > 1:
        raise ValueError(f"no board in {seen.state[:120]!r}")
    size = {"rows": len(rows), "columns": len(rows[0])}
    return pyspiel.load_game(game.name, size).new_initial_state(f"{seen.player}{''.join(rows)}")


def _chance(child: pyspiel.SearchNode, player: int, visits: int) -> float:
    """Known outcomes, else the mean result, drawn to even: by half if all tries were of this move.

    Trusted more, the best of many moves is the luckiest one, and as a target nearly certain.
    """
    if child.outcome:
        return (child.outcome[player] + 1) / 2
    return (child.total_reward / (child.explore_count + visits) + 1) / 2
