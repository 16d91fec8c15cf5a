"""Clobber: a search with exact endings over the board that is shown; nothing is hidden.

Where moves are many, a search of this size hardly tells them apart: its means are drawn to a rule.
"""

from collections.abc import Mapping

import pyspiel

from miner.duel.teachers.base import ByValue, Seen, Values
from miner.games import Game
from miner.games.clobber import CLOBBER, STEPS, Square, squares

SIMULATIONS = 300
LATE_MOVES = 11
LATE_SIMULATIONS = 3000
"""With so few legal moves or fewer a search of this size solves half of the endings or more."""

_SLOPE = 0.02
"""Chance to win for a point of the rule."""

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
        rule = by_neighbours(seen)
        for child in root.children:
            values[child.action] = _chance(
                child, seen.player, rule[child.action], root.explore_count
            )
        return values


def teach_by_neighbours(game: str, seen: Seen) -> Values | None:
    """For `demonstrations.teacher`: Clobber by its rule alone, which a tiny network can learn."""
    return by_neighbours(seen) if game == CLOBBER.name else None


def by_neighbours(seen: Seen) -> Values:
    """Chances by a rule of thumb, which has 0.71 against random moves on 4x5, 0.78 on 5x6.

    Points for the stones around a move's two squares: 1 for each beside the one that it takes; of
    those beside the one that it leaves, 1 for an opposing and -2 for an own one.
    """
    rows = _rows(seen)
    stones = {
        (row, column): stone for row, line in enumerate(rows) for column, stone in enumerate(line)
    }
    own = "ox"[seen.player]
    values = Values()
    for action in seen.actions:
        left, taken = squares(action, len(rows[0]))
        points = sum(stone != "." for stone in _beside(taken, left, stones))
        points += sum({".": 0, own: -2}.get(stone, 1) for stone in _beside(left, taken, stones))
        values[action] = 0.5 + _SLOPE * points
    return values


def _beside(square: Square, apart: Square, stones: Mapping[Square, str]) -> list[str]:
    row, column = square
    near = ((row + down, column + right) for down, right in STEPS)
    return [stones[each] for each in near if each in stones and each != apart]


def _rows(seen: Seen) -> list[str]:
    """The board's, from the top. Raises: `ValueError`."""
    rows = [line.lstrip("0123456789") for line in seen.state.splitlines() if line[:1].isdecimal()]
    if not rows or len({len(row) for row in rows}) > 1:
        raise ValueError(f"no board in {seen.state[:120]!r}")
    return rows


def board(game: Game, seen: Seen) -> pyspiel.State:
    """The state that is shown, with `seen.player` to move. Raises: `ValueError`."""
    rows = _rows(seen)
    size = {"rows": len(rows), "columns": len(rows[0])}
    return pyspiel.load_game(game.name, size).new_initial_state(f"{seen.player}{''.join(rows)}")


def _chance(child: pyspiel.SearchNode, player: int, rule: float, visits: int) -> float:
    """Known outcomes, else the mean result, drawn to the rule's: by half if it had all tries.

    Trusted more, the best of many moves is the luckiest one, and as a target nearly certain.
    """
    if child.outcome:
        return (child.outcome[player] + 1) / 2
    won = (child.total_reward + child.explore_count) / 2
    return (won + rule * visits) / (child.explore_count + visits)
