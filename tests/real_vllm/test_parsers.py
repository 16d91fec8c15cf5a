"""vLLM's own tool parsers: they read well-formed calls as ours do."""

from __future__ import annotations

import json

import pytest

from tests.real_vllm.here import needs_real_vllm, python_with_vllm

needs_real_vllm()
pytestmark = pytest.mark.long


def test_shared_cases_and_written_replies_are_read_alike() -> None:
    done = python_with_vllm("-m", "tests.real_vllm.parsers_program")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
