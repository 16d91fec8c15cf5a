"""DeepSpeed on a machine without GPUs: whether it can run."""

import shutil
import sysconfig
from pathlib import Path

import pytest


def needs_deepspeed() -> None:
    """Skip the calling test, with the reason, where DeepSpeed cannot run."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: rm -r .venv, make setup")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which("g++") is None or not headers.is_file():
        pytest.skip("DeepSpeed compiles its communication for CPUs: no g++ or no Python headers")
