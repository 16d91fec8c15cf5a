"""Ranks: collectives, and the end of one that failed, which would wait for the others."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from miner.config.settings import Settings
from miner.distributed import ranks

PROGRAM = """
import atexit, json, os, sys, threading
import typer
import miner.__main__ as miner
from miner.inference.sampler import EngineLostError

wait = threading.Event().wait

def rank_that_raises(failure):
    def command():
        atexit.register(wait)  # as ending NCCL's process groups would
        raise failure
    os.environ |= {"RANK": "1", "MINER_PARENT_PID": str(os.getppid())}
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return app

apps = {
    "exits": lambda: rank_that_raises(typer.Exit(75)),
    "loses its engine": lambda: rank_that_raises(EngineLostError("no server")),
    "crashes": lambda: rank_that_raises(RuntimeError("a defect")),
}
children = {}
for name, app in apps.items():
    children[name] = os.fork()
    if not children[name]:
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), 2)
        miner.app = app()
        miner.main()
        sys.exit(99)
for name, child in children.items():
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([name, status, open(name).read()]))
"""
"""The ends of one process's forks: importing the commands takes seconds of each other one."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status and last words, by what happened."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path_factory.mktemp("ends"),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = map(json.loads, done.stdout.splitlines())
    return {name: (status, said) for name, status, said in lines}


@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("exits", 75, ""),
        ("loses its engine", 76, "error (rank 1): no server"),
        ("crashes", 1, "RuntimeError: a defect"),
    ],
)
def test_a_rank_that_failed_does_not_wait_for_the_others_at_its_end(
    ends: dict[str, tuple[int, str]], what: str, status: int, said: str
) -> None:
    assert ends[what][0] == status
    assert said in ends[what][1]


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
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
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
