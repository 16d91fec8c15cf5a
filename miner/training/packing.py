"""Which rows of a batch share a forward and backward pass: a partition by a budget of tokens.

Invariants: every row is in exactly one pass; rows come longest first, so that a batch which does
not fit fails in its first pass and later ones find the memory free; a pass is within the budget,
padding included, unless it is one row that alone is longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Length = tuple[int, int]
"""Tokens of a row's prompt, which is padded on the left, and of its completion, on the right."""


def padded_tokens(lengths: Sequence[Length]) -> int:
    """Tokens of these rows as one rectangle, each side padded to its longest."""
    return len(lengths) * (max(p for p, _ in lengths) + max(c for _, c in lengths))


def longest_first(lengths: Sequence[Length]) -> list[int]:
    """Numbers of the rows, from the longest to the shortest; equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda row: -sum(lengths[row]))


def fewest_passes(lengths: Sequence[Length], budget: int) -> list[list[int]]:
    """Numbers of the rows of each pass, as few passes as cutting the sorted rows can give.

    Filling each pass up is the best cut, because a pass never gets smaller by one row more.
    """
    passes: list[list[int]] = []
    for row in longest_first(lengths):
        if passes and padded_tokens([lengths[r] for r in [*passes[-1], row]]) <= budget:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes


def exactly(
    count: int, passes: Sequence[Sequence[int]], lengths: Sequence[Length]
) -> list[list[int]]:
    """The same rows in `count` passes: the largest is halved until there are so many, and where
    each row has one for itself already, the others stay empty.

    Processes that train together need one number of passes, as each pass waits for all of them.
    Raises: ValueError for fewer than there are.
    """
    if count < len(passes):
        raise ValueError(
            f"{len(lengths)} rows in {len(passes)} passes cannot be made {count} passes: take "
            f"{len(passes)} or more"
        )
    made = [list(rows) for rows in passes]
    while len(made) < min(count, len(lengths)):
        divisible = [at for at, rows in enumerate(made) if len(rows) > 1]
        at = max(divisible, key=lambda at: padded_tokens([lengths[row] for row in made[at]]))
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
