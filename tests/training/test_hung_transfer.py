"""The end of a process in which a weight transfer hangs."""

import subprocess
import sys


def test_a_transfer_that_hangs_does_not_keep_the_process_alive():
    script = """
import concurrent.futures, threading
import miner.__main__ as miner
from miner.training.weight_sync import WeightSyncHungError

def app():
    concurrent.futures.ThreadPoolExecutor(1).submit(threading.Event().wait)
    raise WeightSyncHungError("it hangs")

miner.app = app
miner.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (76, "error: it hangs\n")
