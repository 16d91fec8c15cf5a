"""The planned `vllm serve` commands, read by the parser of the vLLM that is installed."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.entrypoint.plans import as_parsed, planned_servers
from tests.real_vllm.here import BIN, CPU_ENVIRONMENT, REPOSITORY, needs_real_vllm

needs_real_vllm()
pytestmark = pytest.mark.long


def test_vllm_takes_every_planned_command() -> None:
    commands = planned_servers()
    done = subprocess.run(
        [str(BIN / "python"), "-m", "tests.vllm_arguments"],
        cwd=REPOSITORY,
        env={**os.environ, **CPU_ENVIRONMENT},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == as_parsed(commands)
