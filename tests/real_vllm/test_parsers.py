"""vLLM's own tool parsers: they read well-formed calls as ours do."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.real_vllm.here import BIN, CPU_ENVIRONMENT, REPOSITORY, needs_real_vllm

needs_real_vllm()
pytestmark = pytest.mark.long


def test_shared_cases_and_written_replies_are_read_alike() -> None:
    done = subprocess.run(
        [str(BIN / "python"), "-m", "tests.real_vllm.parsers_program"],
        cwd=REPOSITORY,
        env={**os.environ, **CPU_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
