"""Common prefixes of token ids."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from miner.common_prefix import common_prefix, longest_prefix

IDS = st.lists(st.integers(0, 1), max_size=8).map(lambda ids: np.array(ids, dtype=np.int64))


@given(IDS, st.lists(IDS, max_size=6), st.integers(1, 5))
def test_the_longest_prefix_is_the_first_of_the_longest(ids, others, least):
    shared = [common_prefix(ids, other) for other in others]
    longest = max(shared, default=0)
    expected = (shared.index(longest), longest) if longest >= least else None
    assert longest_prefix(ids, enumerate(others), least) == expected
