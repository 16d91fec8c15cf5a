"""Packing of trees into forward and backward passes: a partition by a budget of tokens.

Invariants: every tree is in exactly one pass; a pass is within the budget unless it is one tree
that alone is larger, which is a row longer than the budget and at most a quarter of its tokens
beside it; the most expensive pass comes first, so that a batch which does not fit in
memory fails at once.
"""

import heapq
import math
from collections.abc import Callable, Sequence

from miner.learning.forest import Tree

Pass = list[Tree]
Size = Callable[[Pass], int]
"""Tokens that a pass computes."""

EVEN = 1.03
"""A share of at most so many times the mean is taken: to grow trees again would take longer."""


def tokens_in_line(trees: Pass) -> int:
    """Tokens of these trees one after another."""
    return sum(tree.tokens for tree in trees)


def padded_tokens(trees: Pass) -> int:
    """Tokens of these trees as one rectangle."""
    return len(trees) * max((tree.tokens for tree in trees), default=0)


def few_passes(trees: Sequence[Tree], budget: int, size: Size) -> list[Pass]:
    """Passes of which each tree, the largest first, takes the first one with room for it.

    Takes at most 11/9 of the fewest passes and one more where the trees' tokens add up (Johnson
    1973), and the fewest where a pass is a rectangle.
    """
    passes: list[Pass] = []
    for tree in sorted(trees, key=lambda tree: -tree.tokens):
        for trees_there in passes:
            if size([*trees_there, tree]) <= budget:
                trees_there.append(tree)
                break
        else:
            passes.append([tree])
    return sorted(passes, key=size, reverse=True)


def exactly(count: int, passes: Sequence[Pass], size: Size) -> list[Pass]:
    """The same trees in `count` passes: the largest is halved, by its tokens, until that number is
    reached. Where each tree has a pass for itself already, the others stay empty.

    Processes that train together need one number of passes, as each pass waits for all of them.
    It is that of the process with the most.
    """
    made = [list(trees) for trees in passes]
    while len(made) < min(count, sum(map(len, passes))):
        at = max(
            (at for at, trees in enumerate(made) if len(trees) > 1),
            key=lambda at: size(made[at]),
        )
        made[at : at + 1] = _halves(made[at], size)
    return sorted(made, key=size, reverse=True) + [[] for _ in range(count - len(made))]


def _halves(trees: Pass, size: Size) -> tuple[Pass, Pass]:
    """The first ones and the rest, so that the larger half is small."""
    cuts = [(trees[:cut], trees[cut:]) for cut in range(1, len(trees))]
    return min(cuts, key=lambda halves: max(map(size, halves)))


def shared_out(
    grow: Callable[[int], Sequence[Tree]], most: int, processes: int
) -> list[list[Tree]]:
    """Trees for each process, so that the one with most tokens has few.

    Args:
        grow: trees of about so many tokens at most. Smaller ones share less, but are dealt evenly.
        most: tokens of a tree.
    """
    best = _dealt(grow(most), processes)
    mean = sum(map(tokens_in_line, best)) // processes
    most = min(most, mean)
    # of trees of a sixteenth no share has too many
    while most > mean // 16 and tokens_in_line(best[0]) > mean * EVEN:
        again = _dealt(grow(most), processes)
        best = min(best, again, key=lambda shares: tokens_in_line(shares[0]))
        most = most * 3 // 4
    return best


def _dealt(trees: Sequence[Tree], processes: int) -> list[list[Tree]]:
    """The largest first, each to the process with the fewest tokens; the heaviest share first."""
    shares: list[tuple[int, int, list[Tree]]] = [(0, number, []) for number in range(processes)]
    for tree in sorted(trees, key=lambda tree: -tree.tokens):
        tokens, number, share = shares[0]
        share.append(tree)
        heapq.heapreplace(shares, (tokens + tree.tokens, number, share))
    return [share for _, _, share in sorted(shares, key=lambda each: -each[0])]


def over_passes(name: str, values: Sequence[float], tokens: Sequence[float]) -> float:
    """One value of the metric `name` from its values in all passes, NaN ones left out.

    The smallest or largest where the name ends in min or max, else the mean by trained tokens.
    """
    known = [pair for pair in zip(values, tokens, strict=True) if not math.isnan(pair[0])]
    if not known:
        return math.nan
    if name.endswith(("min", "max")):
        return (min if name.endswith("min") else max)(value for value, _ in known)
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan
