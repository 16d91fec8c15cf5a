"""The reference scores that every report shows, against games simulated here."""

from __future__ import annotations

import numpy as np
import pytest

from miner.games import GAMES


def simulated(name: str, cards: int, games: int) -> float:
    """Mean score of `random` or `match` against bids at random, prizes in random order."""
    rng = np.random.default_rng(1)
    prizes, theirs, random = (
        rng.permuted(np.tile(np.arange(1, cards + 1), (games, 1)), axis=1) for _ in range(3)
    )
    lead = (prizes * np.sign((random if name == "random" else prizes) - theirs)).sum(1)
    return float(((np.sign(lead) + 1) / 2).mean())


@pytest.mark.parametrize("cards", [8, 16])
def test_baselines_score_what_the_reports_show(cards: int) -> None:
    for name, shown in zip(("random", "match"), GAMES["goofspiel"].references, strict=False):
        score = simulated(name, cards, 40_000)
        assert score == pytest.approx(shown.by_deck_size[cards], abs=0.01), "four standard errors"
