"""The installed vLLM: its parsers of planned `vllm serve` commands and of tool calls."""

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


def test_shared_cases_and_written_replies_are_read_alike() -> None:
    done = python_with_vllm("-m", "tests.real_vllm.parsers_program")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
