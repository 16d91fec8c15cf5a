"""The installed vLLM: its parsers of planned `vllm serve` commands and of tool calls."""

import json

import pytest

from tests.entrypoint.plans import as_parsed, planned_servers
from tests.real_vllm.here import needs_real_vllm, python_with_vllm

needs_real_vllm()
pytestmark = pytest.mark.long


BOTH = """
import runpy
for program in ("tests.vllm_arguments", "tests.real_vllm.parsers_program"):
    runpy.run_module(program, run_name="__main__")
"""
"""In one process: importing vLLM takes a quarter of a minute."""


def test_planned_commands_cases_and_written_replies_are_read_alike() -> None:
    commands = planned_servers()
    done = python_with_vllm("-c", BOTH, text=json.dumps(commands))
    assert done.returncode == 0, done.stderr[-2000:]
    parsed, apart = map(json.loads, done.stdout.splitlines()[-2:])
    assert parsed == as_parsed(commands)
    assert apart == []
