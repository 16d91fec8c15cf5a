"""Which trees share a forward and backward pass: a partition by a budget of tokens.

Invariants: every tree is in exactly one pass; a pass is within the budget, padding included, unless
it is one tree that alone is larger; trees with and without branches are in passes of their own, as
only the former need a mask; the most expensive pass comes first, so that a batch which does not fit
in memory fails at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from miner.training.forest import Tree

Pass = list[Tree]


def padded_tokens(trees: Pass) -> int:
    """Tokens of these trees as one rectangle."""
    return len(trees) * max((tree.tokens for tree in trees), default=0)


def fewest_passes(trees: Sequence[Tree], budget: int) -> list[Pass]:
    """As few passes as cutting the trees, sorted by size, can give.

    Filling each pass up is the best cut, because a pass never gets smaller by one tree more.
    """
    passes: list[Pass] = []
    for tree in sorted(trees, key=lambda tree: (tree.branched, -tree.tokens)):
        fits = (
            passes
            and passes[-1][0].branched == tree.branched
            and padded_tokens([*passes[-1], tree]) <= budget
        )
        if fits:
            passes[-1].append(tree)
        else:
            passes.append([tree])
    return sorted(passes, key=padded_tokens, reverse=True)


def exactly(count: int, passes: Sequence[Pass]) -> list[Pass]:
    """The same trees in `count` passes: the largest is halved until there are so many, and where
    each tree has one for itself already, the others stay empty.

    Processes that train together need one number of passes, as each pass waits for all of them.
    Raises: ValueError for fewer than there are.
    """
    if count < len(passes):
        raise ValueError(
            f"{len(passes)} passes cannot be made {count} passes: take {len(passes)} or more"
        )
    made = [list(trees) for trees in passes]
    while len(made) < min(count, sum(map(len, passes))):
        at = max(
            (at for at, trees in enumerate(made) if len(trees) > 1),
            key=lambda at: padded_tokens(made[at]),
        )
        half = len(made[at]) // 2
        made[at : at + 1] = [made[at][:half], made[at][half:]]
    return made + [[] for _ in range(count - len(made))]


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
