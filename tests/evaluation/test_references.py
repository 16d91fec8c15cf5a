"""The script behind the reference scores, against a search that takes no short cut."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.references import best_response, simulate
from miner.evaluation.references import MATCH, RANDOM


@cache
def searched(
    prizes: frozenset[int], own: frozenset[int], other: frozenset[int], lead: int
) -> float:
    """The best policy's expected score from a position, by trying everything."""
    if not prizes:
        return (np.sign(lead) + 1) / 2
    return np.mean(
        [
            max(
                np.mean(
                    [
                        searched(
                            prizes - {prize},
                            own - {bid},
                            other - {reply},
                            lead + prize * int(np.sign(bid - reply)),
                        )
                        for reply in other
                    ]
                )
                for bid in own
            )
            for prize in prizes
        ]
    )


@pytest.mark.parametrize("cards", [1, 2, 3, 4, 5])
def test_the_best_response_is_that_of_a_plain_search(cards: int) -> None:
    deck = frozenset(range(1, cards + 1))
    assert best_response(cards) == pytest.approx(searched(deck, deck, deck, 0), abs=1e-6)


@pytest.mark.parametrize("cards", [8, 16])
def test_baselines_score_what_the_reports_show(cards: int) -> None:
    rng = np.random.default_rng(1)
    for name, shown in (("random", RANDOM), ("match", MATCH)):
        score = simulate(name, cards, 40_000, rng)
        assert score == pytest.approx(shown.by_deck_size[cards], abs=0.01), "four standard errors"
