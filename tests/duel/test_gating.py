"""The gate's matches between real players."""

from __future__ import annotations

import pytest

from miner.duel.gating import play_gate


async def test_a_stronger_player_passes_and_the_weaker_one_does_not() -> None:
    strong = await play_gate("teacher", "random", ["leduc_poker"], 300)
    assert strong.passed
    weak = await play_gate("random", "teacher", ["leduc_poker"], 60)
    assert "leduc_poker" in weak.undecided


@pytest.mark.parametrize("number", [1, 2])
async def test_too_few_pairs_leave_it_undecided(number: int) -> None:
    gate = await play_gate("teacher", "random", ["leduc_poker"], 2, number)
    assert not gate.passed
