"""DeepSpeed on a machine without GPUs: whether it can run."""

import shutil

import pytest


def needs_deepspeed() -> None:
    """Skip the calling test, with the reason, where DeepSpeed cannot run."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: make setup")
    if shutil.which("g++") is None:
        pytest.skip("DeepSpeed compiles its communication for CPUs, and there is no g++")
