"""Child processes of ours end with the process that started them, even if that is killed."""

import ctypes
import os
import signal
import sys

PARENT = "MINER_PARENT_PID"
ORPHAN_STATUS = 1
_PR_SET_PDEATHSIG = 1


def lifeline() -> dict[str, str]:
    """Environment variables with which a child can call `hold_lifeline`."""
    return {PARENT: str(os.getpid())}


def hold_lifeline() -> bool:
    """The kernel kills this process from now on when its parent dies (Linux; elsewhere it lingers).

    More exactly, when the parent's thread that started it ends. Without a parent that gave it a
    `lifeline` nothing happens.
    Returns: whether there is one.
    """
    parent = os.environ.get(PARENT)
    if parent is None:
        return False
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # it died before the call
            sys.exit(ORPHAN_STATUS)
    return True
