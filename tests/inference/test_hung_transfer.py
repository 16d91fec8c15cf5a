"""The end of a process that would wait for something for ever: a transfer, other ranks."""

import os
import subprocess
import sys

import pytest


def test_a_transfer_that_hangs_does_not_keep_the_process_alive():
    script = """
import concurrent.futures, threading
import miner.__main__ as miner
from miner.inference.vllm.weight_sync import WeightSyncHungError

def app():
    concurrent.futures.ThreadPoolExecutor(1).submit(threading.Event().wait)
    raise WeightSyncHungError("it hangs")

miner.app = app
miner.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (76, "error: it hangs\n")


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        ("typer.Exit(75)", 75, ""),
        ("EngineLostError('no server')", 76, "error (rank 1): no server"),
        ("RuntimeError('a defect')", 1, "RuntimeError: a defect"),
    ],
)
def test_a_rank_that_failed_does_not_wait_for_the_others_at_its_end(failure, status, said):
    script = f"""
import atexit, threading
import typer
import miner.__main__ as miner
from miner.inference.sampler import EngineLostError

def command():
    atexit.register(threading.Event().wait)  # as ending NCCL's process groups would
    raise {failure}

miner.app = typer.Typer(pretty_exceptions_enable=False)
miner.app.command()(command)
miner.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "RANK": "1", "MINER_PARENT_PID": str(os.getpid())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert said in done.stderr
