"""A push of weights counts once no states of older ones are left."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from miner.background_loop import BackgroundLoop
from miner.inference.vllm import weight_sync
from miner.inference.vllm.weight_sync import CACHE_RESETS, WeightSync, WeightSyncError


@pytest.mark.parametrize(("refusals", "arrives"), [(3, True), (CACHE_RESETS, False)])
def test_cached_states_are_gone_before_a_push_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, arrives: bool
) -> None:
    """vLLM refuses to drop them while an aborted request still holds some."""
    monkeypatch.setattr(weight_sync, "CACHE_PAUSE_S", 0.0)
    answers = [False] * refusals + [True]
    server: Any = AsyncMock(url="http://server")
    server.weight_version.return_value = "1"
    server.health_error.return_value = ""
    server.reset_prefix_cache.side_effect = answers
    kept = pytest.raises(WeightSyncError, match="kept cached states of older weights")
    expected: AbstractContextManager[object] = nullcontext() if arrives else kept
    with BackgroundLoop() as loop, expected:
        sync = WeightSync(lambda: {"a": torch.zeros(1)}, server, loop, tmp_path, 1.0)
        sync.push("1")
    assert server.reset_prefix_cache.await_count == refusals + arrives
