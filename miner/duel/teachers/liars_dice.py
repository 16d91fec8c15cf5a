"""Liar's dice by regret matching over (own dice, last bid): all that a prompt shows.

252 hands by 61 last bids. What was bid before the last bid is forgotten, so that the game is a
graph of 61 nodes, and a sweep over it updates every strategy at once. Opponents err: with the
probability `ERRORS` a bid of theirs is any legal one, which keeps every node in reach and makes
the values hold against weak players too.

Source: regret matching+ with linear averaging, Tammelin 2014 (arXiv 1407.5042).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from miner.duel.teachers.base import ByValue, Seen, Values
from miner.games.liars_dice import DICE, FACES

SWEEPS = 30
"""Sweeps of about a tenth of a second each; more change little (docs/duels.md)."""

ERRORS = 0.05
JUMP = 12
"""Bids that the solution raises by at most; values are of all."""

BIDS = 2 * DICE * FACES
LIAR = BIDS

_HANDS = list(combinations_with_replacement(range(1, FACES + 1), DICE))

Table = NDArray[np.float32]


class LiarsDiceTeacher(ByValue):
    """See the module. The first question solves the game, within seconds.

    Args:
        sweeps: of regret matching.
    """

    def __init__(self, sweeps: int = SWEEPS) -> None:
        self._sweeps = sweeps

    def values(self, seen: Seen) -> Values:
        dice, node = read_turn(seen)
        row = solved(self._sweeps)[node, _HANDS.index(dice)]
        return {action: float(row[action]) for action in seen.actions}

    def why(self, seen: Seen, move: int) -> str:
        if move == LIAR:
            return "their bid is too high for what I hold"
        face = seen.actions[move].partition("-")[2]
        dice = seen.field("Your dice").partition("(")[0]
        held = dice.count(face) + (dice.count(str(FACES)) if face != str(FACES) else 0)
        return f"I hold {held} of {face}"


def read_turn(seen: Seen) -> tuple[tuple[int, ...], int]:
    """Own dice, ascending, and the node: 0 before any bid, n after bid n - 1."""
    dice = sorted(int(face) for face in seen.field("Your dice")[1 : 3 * DICE - 1 : 3])
    if LIAR not in seen.actions:
        return tuple(dice), 0
    first = next(iter(seen.actions))
    return tuple(dice), BIDS if first == LIAR else first


@cache
def solved(sweeps: int = SWEEPS) -> Table:
    """Chances to win against the solution, shape (61 nodes, 252 hands, 61 actions).

    Node 0 is before any bid, node n after bid n - 1; illegal actions have chance 0.
    """
    return _Solver().solve(sweeps)


class _Solver:
    """Arrays are of shape (hands,) for one hand, (hands of the mover, of the other) for two."""

    def __init__(self) -> None:
        counts = np.array(
            [
                [hand.count(f) + (f != FACES) * hand.count(FACES) for f in range(1, FACES + 1)]
                for hand in _HANDS
            ]
        )
        ways = [factorial(DICE) / prod(factorial(h.count(f)) for f in set(h)) for h in _HANDS]
        odds = np.array(ways, np.float32) / FACES**DICE
        self.dealt: Table = np.outer(odds, odds)
        self.false: Table = np.array(
            [
                counts[:, None, b % FACES] + counts[None, :, b % FACES] <= b // FACES
                for b in range(BIDS)
            ],
            np.float32,
        )
        """Whether each bid is false."""
        size = len(_HANDS)
        self.legal = np.zeros((BIDS + 1, BIDS + 1), bool)
        for node in range(BIDS + 1):
            self.legal[node, node:BIDS] = True
            self.legal[node, LIAR] = node > 0
        self._after = np.zeros((size, BIDS, size), np.float32)
        """The mover's chance to win after each bid, by the solution so far."""

    def solve(self, sweeps: int) -> Table:
        nodes, size = BIDS + 1, len(_HANDS)
        within = self.legal & ~np.triu(np.ones((nodes, nodes), bool), JUMP)
        within[1:, LIAR] = True
        within[0] = self.legal[0] & (np.arange(nodes) < JUMP)
        start = within / within.sum(1, keepdims=True)
        strategy: Table = np.repeat(start[:, None].astype(np.float32), size, axis=1)
        regrets, total = np.zeros_like(strategy), np.zeros_like(strategy)
        for sweep in range(1, sweeps + 1):
            reach = list(self._reach(strategy))
            for node in reversed(range(nodes)):
                mixed = strategy[node]
                values = self._values(node, reach[node])
                regrets[node] += (values - (mixed * values).sum(1, keepdims=True)) * within[node]
                np.maximum(regrets[node], 0, out=regrets[node])
                total[node] += sweep * mixed
                self._update(node, mixed)
                sums = regrets[node].sum(1, keepdims=True)
                strategy[node] = np.where(
                    sums > 0, regrets[node] / np.maximum(sums, 1e-30), start[node]
                )
        average = total / total.sum(2, keepdims=True)
        reach = list(self._reach(average))
        values = np.zeros_like(average)
        for node in reversed(range(nodes)):
            values[node] = self._values(node, reach[node])
            self._update(node, average[node])
        return values

    def _reach(self, strategy: Table) -> Iterator[Table]:
        """Odds of both hands at each node, in order."""
        size = len(_HANDS)
        made = np.zeros((size, BIDS, size), np.float32)
        erred = np.zeros((size, size), np.float32)
        here = self.dealt
        yield here
        for node in range(BIDS):
            bids = slice(node, min(BIDS, node + JUMP))
            made[:, bids] += strategy[node][:, bids, None] * ((1 - ERRORS) * here)[:, None]
            erred += here * (ERRORS / self.legal[node].sum())
            here = (made[:, node] + erred).T
            yield here

    def _values(self, node: int, reach: Table) -> Table:
        """The mover's chance by hand and action."""
        values = np.zeros((len(_HANDS), BIDS + 1), np.float32)
        values[:, node:BIDS] = (self._after[:, node:] @ reach[:, :, None])[..., 0]
        if node:
            values[:, LIAR] = (self.false[node - 1] * reach).sum(1)
        return values / (reach.sum(1, keepdims=True) + 1e-30)

    def _update(self, node: int, strategy: Table) -> None:
        """What the bid that leads to `node` leaves its bidder, when `strategy` answers."""
        if not node:
            return
        bids = slice(node, min(BIDS, node + JUMP))
        answered = (strategy[:, None, bids] @ self._after[:, bids])[:, 0]
        answered = answered + strategy[:, LIAR:] * self.false[node - 1]
        self._after[:, node - 1] = 1 - answered.T
