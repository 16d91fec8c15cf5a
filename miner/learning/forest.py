"""Rows that begin alike as trees, in which each token is computed once.

Invariants:
* every row is in exactly one tree, as a path from its root; equal beginnings of a tree's rows are
  the same nodes;
* a node is there only if a token with loss comes after it: ends of rows, which no loss looks at,
  cost nothing;
* nodes are in depth-first order, so node q descends from node k exactly if k <= q < ends[k];
* the same rows give the same trees.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from miner.common_prefix import Ints, common_prefix


@dataclass(frozen=True, eq=False)
class Row:
    """A prompt with its completion.

    Attributes:
        ids: of both.
        targets: positions in `ids` of the tokens with loss, ascending, at least one, none of them
            the first.
    """

    ids: Ints
    targets: Ints

    @property
    def path(self) -> Ints:
        """The tokens from which the last one with loss is predicted."""
        return self.ids[: self.targets[-1]]


def rows_of(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
) -> list[Row]:
    """Rows of these, in their order.

    Args:
        prompts: one that several rows share as one object is converted once, such as that of a
            decision's replies.
        targets: positions in each completion of the tokens with loss.
    """
    read = {id(prompt): prompt for prompt in prompts}
    arrays = {key: np.array(prompt, np.int64) for key, prompt in read.items()}
    return [
        Row(np.concatenate([arrays[id(prompt)], completion]), np.array(offsets) + len(prompt))
        for prompt, completion, offsets in zip(prompts, completions, targets, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes of one token each, in depth-first order.

    Attributes:
        ids, depths, ends: of each node its token, its position, and the first node that is no
            longer below it.
        rows: numbers of the rows that are in this tree.
        reads: for each of these, the nodes after which its tokens with loss come.
    """

    ids: Ints
    depths: Ints
    ends: Ints
    rows: list[int]
    reads: list[Ints]

    @property
    def tokens(self) -> int:
        """Number of nodes."""
        return len(self.ids)


def grow(rows: Mapping[int, Row], budget: int, most: int | None = None) -> list[Tree]:
    """Trees that fit into a pass of `budget` tokens; of a longer row, a quarter more than it.

    Neighbours in lexicographic order share the most. From the longest shared beginning to the
    shortest, the trees on its two sides are merged where that fits.

    Args:
        most: tokens of a tree, where fewer than `budget` are wanted: trees of less than a quarter
            more than their longest row are made nevertheless.
    """
    order = sorted(rows, key=lambda number: _key(rows[number]))
    paths = [rows[number].path for number in order]
    shared = [0, *(common_prefix(a, b) for a, b in pairwise(paths))]
    return [
        _tree({number: rows[number] for number in order[run.start : run.stop]}, shared[run.start :])
        for run in _merged(paths, shared, budget, budget if most is None else most)
    ]


def single(rows: Mapping[int, Row]) -> list[Tree]:
    """A tree for each row, for models that can take no other."""
    return [_tree({number: row}, [0]) for number, row in rows.items()]


def nearly_within(needed: Mapping[int, Row], rows: Mapping[int, Row]) -> dict[int, Row]:
    """Those of `rows` of whose path nine tenths are the beginning of a needed row's."""
    if not rows:
        return {}
    order = sorted({**needed, **rows}, key=lambda number: _key(rows[number]))
    paths = [rows[number].path for number in order]
    shared = [common_prefix(a, b) for a, b in pairwise(paths)]
    held = dict.fromkeys(order, 0)  # tokens in common with a needed row
    for way, gaps in ((order, shared), (order[::-1], shared[::-1])):
        common = 0
        for number, gap in zip(way, (0, *gaps), strict=True):
            common = min(common, gap)
            held[number] = max(held[number], common)
            if number in needed:
                common = len(rows[number].path)
    return {n: row for n, row in rows.items() if 10 * held[n] >= 9 * len(row.path)}


def _key(row: Row) -> bytes:
    """Lexicographic order."""
    return row.path.astype(">i4").tobytes()


def _merged(
    paths: Sequence[Ints], shared: Sequence[int], budget: int, most: int
) -> Iterator[range]:
    """Runs of sorted paths that make a tree each."""

    def room(depth: int) -> int:
        over = depth + depth // 4
        return over if depth > budget else min(budget, max(most, over))

    first = list(range(len(paths)))  # of the run that a path at the edge of one belongs to
    last = list(range(len(paths)))
    tokens = [len(path) for path in paths]  # of the run that begins here
    deepest = list(tokens)
    for here in sorted(range(1, len(paths)), key=lambda i: -shared[i]):
        left, right, end = first[here - 1], here, last[here]
        whole = tokens[left] + tokens[right] - shared[here]
        depth = max(deepest[left], deepest[right])
        if shared[here] and whole <= room(depth):
            tokens[left], deepest[left] = whole, depth
            last[left], first[end] = end, left
    start = 0
    while start < len(paths):
        yield range(start, last[start] + 1)
        start = last[start] + 1


def _tree(rows: Mapping[int, Row], shared: Sequence[int]) -> Tree:
    """The tree of these rows, of which each but the first shares so many tokens with the one
    before."""
    count = 0
    ids, depths, reads = [], [], []
    path = np.empty(0, np.int64)  # the nodes of the row at hand
    ends = np.empty(sum(len(row.path) for row in rows.values()), np.int64)
    for row, kept in zip(rows.values(), (0, *shared[1:]), strict=False):
        new = row.path[kept:]
        ends[path[kept:]] = count
        path = np.concatenate([path[:kept], np.arange(count, count + len(new))])
        count += len(new)
        ids.append(new)
        depths.append(np.arange(kept, kept + len(new)))
        reads.append(path[row.targets - 1])
    ends[path] = count
    return Tree(np.concatenate(ids), np.concatenate(depths), ends[:count], list(rows), reads)
