"""The planned `vllm serve` commands, read by the parser of the vLLM that is installed."""

from __future__ import annotations

import json

import pytest

from tests.entrypoint.plans import as_parsed, planned_servers
from tests.real_vllm.here import needs_real_vllm, python_with_vllm

needs_real_vllm()
pytestmark = pytest.mark.long


def test_vllm_takes_every_planned_command() -> None:
    commands = planned_servers()
    done = python_with_vllm("-m", "tests.vllm_arguments", text=json.dumps(commands))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == as_parsed(commands)
