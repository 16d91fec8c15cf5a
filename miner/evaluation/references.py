"""Known scores in Goofspiel against a uniformly random opponent, for comparison.

Means of 400,000 games each; `python -m miner evaluate policy=match environment.channel=builtin`
plays as many as are asked for. Best responses of 8 and 10 cards are exact, by dynamic programming
over the prizes left, both hands and the lead, in a program that is not kept; those of 12, 14 and 16
cards are estimates.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, slots=True)
class ReferenceScore:
    """A policy's expected score: over all deck sizes equally often, and for each."""

    name: str
    overall: float
    by_deck_size: dict[int, float]

    def mean(self, sizes: Collection[int] = ()) -> float:
        """Mean over `sizes`, each equally often; over all sizes when empty."""
        if not sizes or set(sizes) == self.by_deck_size.keys():
            return self.overall
        return fsum(self.by_deck_size[size] for size in sizes) / len(sizes)


RANDOM = ReferenceScore("random", 0.50, {8: 0.499, 10: 0.500, 12: 0.500, 14: 0.499, 16: 0.499})
MATCH = ReferenceScore(
    "match (bid = prize)", 0.954, {8: 0.924, 10: 0.942, 12: 0.957, 14: 0.968, 16: 0.976}
)
BEST_RESPONSE = ReferenceScore(
    "best response", 0.958, {8: 0.9317, 10: 0.9480, 12: 0.96, 14: 0.97, 16: 0.98}
)
