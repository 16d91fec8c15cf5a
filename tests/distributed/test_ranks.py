"""How a process joins the others: with its own device, whatever opens the world."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from miner.config.settings import Settings
from miner.distributed import ranks


@pytest.mark.parametrize(("zero", "gpus"), [(0, 2), (2, 2), (0, 0), (2, 0)])
def test_a_process_group_is_opened_with_the_ranks_device(
    zero: int, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL guesses one otherwise; DeepSpeed takes the group that there is."""
    asked: list[Any] = []

    def opened(backend: str, timeout: timedelta, device_id: torch.device | None) -> None:
        asked.append((backend, device_id))

    deepspeed = SimpleNamespace(init_distributed=lambda backend, timeout: asked.append(backend))
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setattr(ranks, "launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", opened)
    monkeypatch.setattr(dist, "new_group", lambda **given: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    ranks.join_ranks(Settings.load(None, [f"optimizer.zero_stage={zero}"], environ={}))
    own, backend = torch.device("cuda", 1), "nccl" if gpus else "gloo"
    assert asked == [
        *([own] if gpus else []),
        (backend, own if gpus else None),
        *([backend] if zero else []),
    ]
