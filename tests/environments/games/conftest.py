"""Transcripts of the real server, or their extract.

Tests that take `graded_case` run once for each failed case and each other game.
"""

from typing import Any

import pytest

from tests.recordings import load


def _graded_cases() -> list[dict[str, Any]]:
    """Cases of evaluate_errors.json in which a game was started."""
    cases = []
    for case in load("evaluate_errors.json"):
        result = case["response"].get("result") if isinstance(case["response"], dict) else None
        if result and result.get("extra", {}).get("conversation"):
            cases.append(case)
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run per case."""
    if "graded_case" in metafunc.fixturenames:
        cases = _graded_cases()
        metafunc.parametrize("graded_case", cases, ids=[case["name"] for case in cases])


@pytest.fixture(scope="session")
def graded_episodes() -> list[dict[str, Any]]:
    """All graded transcripts."""
    return load("evaluate.jsonl")
