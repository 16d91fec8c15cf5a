"""A push of weights counts once no states of older ones are left."""

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from miner.background_loop import BackgroundLoop
from miner.inference.sampler import SamplerError
from miner.inference.vllm.weight_sync import WeightSync, WeightSyncError


def test_a_push_that_leaves_cached_states_has_failed(tmp_path: Path) -> None:
    server: Any = AsyncMock(url="http://server")
    server.weight_version.return_value = "1"
    server.health_error.return_value = ""
    server.reset_prefix_cache.side_effect = SamplerError("HTTP 500: requests hold some")
    lost = pytest.raises(WeightSyncError, match="'1' did not arrive: HTTP 500: requests hold some")
    with BackgroundLoop() as loop, lost:
        WeightSync(lambda: {"a": torch.zeros(1)}, server, loop, tmp_path, 1.0).push("1")
