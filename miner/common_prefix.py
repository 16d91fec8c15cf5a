"""Common prefixes of sequences of token ids."""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Key = TypeVar("Key")


def common_prefix(a: Ints, b: Ints) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def longest_prefix(
    ids: Ints, others: Iterable[tuple[Key, Ints]], least: int
) -> tuple[Key, int] | None:
    """The key of the sequence that shares the longest prefix with `ids`, and its length.

    Of equals the first; None where no prefix has `least` tokens, at least one.
    """
    found = None
    for key, other in others:
        # a single token shows of most that they share less
        if min(len(ids), len(other)) < least or ids[least - 1] != other[least - 1]:
            continue
        if (common := common_prefix(ids, other)) >= least:
            found, least = (key, common), common + 1
    return found
