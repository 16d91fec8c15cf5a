"""The end of a rank that failed, which would wait for the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
