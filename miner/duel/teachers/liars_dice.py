"""Liar's dice, solved over (own dice, last bid), all that a prompt shows, against a mixed field.

252 hands by 61 last bids. What was bid before the last bid is forgotten, so that the game is a
graph of 61 nodes, and a sweep over it updates every strategy at once. The opponent of the solution
follows the rule that public winners imitate (`by_the_odds`) with the probability `RULE` at each
turn, and otherwise does its best against the solution, by regret matching too: the solution takes
what the rule leaves and loses little to others. Both sides err: with the probability `ERRORS` a bid
is any legal one, which keeps every node in reach and makes the values hold against weak players.

Sources: restricted Nash responses, Johanson, Zinkevich and Bowling 2007 ("Computing robust
counter-strategies"); regret matching+ with linear averaging, Tammelin 2014 (arXiv 1407.5042).
"""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations_with_replacement
from math import comb, factorial, prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from miner.duel.teachers.base import ByValue, Seen, Values
from miner.games.liars_dice import DICE, FACES

logger = logging.getLogger(__name__)

SWEEPS = 16
"""Sweeps of about a third of a second each."""

MOST_SECONDS = 40.0
"""Processor time after which the strategies so far have to do: demonstrations of a game whose
teacher takes a minute are given up. A run that is resumed may then learn other values."""

RULE = 0.8
"""Probability that the opponent's move is the rule's."""

ERRORS = 0.05
JUMP = 12
"""Bids that the solution raises by at most; values are of all."""

BIDS = 2 * DICE * FACES
LIAR = BIDS

_HANDS = list(combinations_with_replacement(range(1, FACES + 1), DICE))

Table = NDArray[np.float32]


class LiarsDiceTeacher(ByValue):
    """See the module. The first question solves the game, within seconds; where that fails, such as
    for want of memory, this process teaches the rule by the odds.

    Args:
        sweeps: of regret matching.
    """

    def __init__(self, sweeps: int = SWEEPS) -> None:
        self._sweeps = sweeps

    def values(self, seen: Seen) -> Values:
        dice, node = read_turn(seen)
        table = solved(self._sweeps)
        if table is None:
            rule = by_the_odds(dice, node)
            return {action: 0.5 + 0.1 * (action == rule) for action in seen.actions}
        row = table[node, _HANDS.index(dice)]
        return {action: float(row[action]) for action in seen.actions}


def read_turn(seen: Seen) -> tuple[tuple[int, ...], int]:
    """Own dice, ascending, and the node: 0 before any bid, n after bid n - 1."""
    dice = sorted(int(face) for face in seen.field("Your dice")[1 : 3 * DICE - 1 : 3])
    if LIAR not in seen.actions:
        return tuple(dice), 0
    first = next(iter(seen.actions))
    return tuple(dice), BIDS if first == LIAR else first


def by_the_odds(dice: Sequence[int], node: int) -> int:
    """Doubt a bid that is rather false than true, else raise to the likeliest of all bids."""
    if node == BIDS or (node and _chance(node - 1, dice) < 0.5):
        return LIAR
    return max(range(node, BIDS), key=lambda bid: (_chance(bid, dice), -bid))


def _chance(bid: int, dice: Sequence[int]) -> float:
    """That a bid is true, where the other hand may be any; the highest face is wild."""
    quantity, face = bid // FACES + 1, bid % FACES + 1
    missing = quantity - sum(die in (face, FACES) for die in dice)
    odds = (1 + (face != FACES)) / FACES
    return sum(
        comb(DICE, count) * odds**count * (1 - odds) ** (DICE - count)
        for count in range(max(0, missing), DICE + 1)
    )


def solved(sweeps: int = SWEEPS) -> Table | None:
    """Chances to win against the field, shape (61 nodes, 252 hands, 61 actions); None where the
    game cannot be solved.

    Node 0 is before any bid, node n after bid n - 1; illegal actions have chance 0. Thread-safe:
    the game is solved once, by the thread that asks first, and the others wait.
    """
    with _SOLVING:
        return _solved(sweeps)


_SOLVING = Lock()


@cache
def _solved(sweeps: int) -> Table | None:
    try:
        return _Solver().solve(sweeps)
    except Exception as error:
        logger.warning("Liar's dice is taught by the odds, not solved: %r", error)
        return None


OURS, THEIRS = 0, 1


class _Solver:
    """Arrays are of shape (hands,) for one hand, (hands of the mover, of the other) for two.

    Lists of two are by side, `OURS` and `THEIRS`; a strategy has shape (nodes, hands, actions).
    """

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
        """Mask of the bids that are false."""
        nodes, size = BIDS + 1, len(_HANDS)
        self.legal = np.zeros((nodes, nodes), bool)
        for node in range(nodes):
            self.legal[node, node:BIDS] = True
            self.legal[node, LIAR] = node > 0
        self._odds = np.zeros((nodes, size, nodes), np.float32)
        for node in range(nodes):
            for hand, dice in enumerate(_HANDS):
                self._odds[node, hand, by_the_odds(dice, node)] = 1
        self._after: list[Table] = [np.zeros((size, BIDS, size), np.float32) for _ in (0, 1)]
        """A side's chance to win after each of its bids, by the strategies so far."""

    def solve(self, sweeps: int) -> Table:
        nodes, size = BIDS + 1, len(_HANDS)
        within = self.legal & ~np.triu(np.ones((nodes, nodes), bool), JUMP)
        within[1:, LIAR] = True
        within[0] = self.legal[0] & (np.arange(nodes) < JUMP)
        start = within / within.sum(1, keepdims=True)
        begin = np.repeat(start[:, None].astype(np.float32), size, axis=1)
        strategies: Table = np.stack([begin, begin])
        regrets, total = np.zeros_like(strategies), np.zeros_like(strategies)
        end = time.thread_time() + MOST_SECONDS
        for sweep in range(1, sweeps + 1):
            if sweep > 1 and time.thread_time() > end:
                logger.warning("Liar's dice: %d of %d sweeps in time", sweep - 1, sweeps)
                break
            total += sweep * strategies
            reach = list(self._reach(strategies))
            for node in reversed(range(nodes)):
                for side in (OURS, THEIRS):
                    values, mixed = self._values(side, node, reach[node]), strategies[side, node]
                    gains = values - (mixed * values).sum(1, keepdims=True)
                    regret = regrets[side, node]
                    np.maximum(regret + gains * within[node], 0, out=regret)
                self._update(node, strategies)
                sums = regrets[:, node].sum(2, keepdims=True)
                matched = regrets[:, node] / np.maximum(sums, 1e-30)
                strategies[:, node] = np.where(sums > 0, matched, start[node])
        average = total / total.sum(3, keepdims=True)
        reach = list(self._reach(average))
        values = np.zeros_like(begin)
        for node in reversed(range(nodes)):
            values[node] = self._values(OURS, node, reach[node])
            self._update(node, average)
        return values

    def _moves(self, side: int, node: int, strategies: Table) -> Table:
        """A side's strategy at a node: the opponent's has its share of the rule."""
        mixed = strategies[side, node]
        return mixed if side == OURS else (1 - RULE) * mixed + RULE * self._odds[node]

    def _reach(self, strategies: Table) -> Iterator[Table]:
        """Odds of both hands at each node, in order, where each side is the mover."""
        size = len(_HANDS)
        made = np.zeros((2, size, BIDS, size), np.float32)
        erred = np.zeros((2, size, size), np.float32)
        here: Table = np.stack([self.dealt, self.dealt])
        yield here
        for node in range(BIDS):
            bids = slice(node, min(BIDS, node + JUMP))
            for side in (OURS, THEIRS):
                moves = self._moves(side, node, strategies)
                made[side, :, bids] += moves[:, bids, None] * ((1 - ERRORS) * here[side])[:, None]
            erred += here * (ERRORS / self.legal[node].sum())
            here = (made[:, :, node] + erred).transpose(0, 2, 1)[::-1]  # the other moves now
            yield here

    def _values(self, side: int, node: int, reach: Table) -> Table:
        """A side's chance by hand and action, where it is the mover."""
        here, values = reach[side], np.zeros((len(_HANDS), BIDS + 1), np.float32)
        values[:, node:BIDS] = (self._after[side][:, node:] @ here[:, :, None])[..., 0]
        if node:
            values[:, LIAR] = (self.false[node - 1] * here).sum(1)
        return values / (here.sum(1, keepdims=True) + 1e-30)

    def _update(self, node: int, strategies: Table) -> None:
        """Value to its bidder of the bid that leads to `node`, when the other side answers."""
        if not node:
            return
        bids = slice(node, min(BIDS, node + JUMP))
        for side, other in ((OURS, THEIRS), (THEIRS, OURS)):
            moves = self._moves(other, node, strategies)
            answered = (moves[:, None, bids] @ self._after[other][:, bids])[:, 0]
            answered = answered + moves[:, LIAR:] * self.false[node - 1]
            self._after[side][:, node - 1] = 1 - answered.T
