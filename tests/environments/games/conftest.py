"""Transcripts of the real server, or their extract.

Tests that take `graded_episode` or `graded_case` run once per transcript.
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
    """One run per transcript."""
    transcripts = {
        "graded_episode": load("evaluate.jsonl"),
        "graded_case": _graded_cases(),
    }
    for name, entries in transcripts.items():
        if name in metafunc.fixturenames:
            ids = [
                str(entry.get("name") or entry.get("group") or entry["policy"]) for entry in entries
            ]
            metafunc.parametrize(name, entries, ids=ids)


@pytest.fixture(scope="session")
def graded_episodes() -> list[dict[str, Any]]:
    """All graded transcripts."""
    return load("evaluate.jsonl")
