"""Transcripts of the real server, or their extract.

Tests that take `graded_episode`, `graded_case`, `train_episode`, `refusals` or `opening` run once
per transcript.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.recordings import load

_REFUSALS = ("step_bad_actions_live_episode", "invalid_action_16_cards")


def _graded_cases() -> list[dict[str, Any]]:
    """Cases of evaluate_errors.json in which a game was started."""
    cases = []
    for case in load("evaluate_errors.json"):
        result = case["response"].get("result") if isinstance(case["response"], dict) else None
        if result and result.get("extra", {}).get("conversation"):
            cases.append(case)
    return cases


def _openings(train: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """First observations of the other games, where no searching opponent moved before."""
    openings = []
    for call in (call for entry in train if "group" in entry for call in entry["calls"]):
        result = call["response"].get("result") if isinstance(call["response"], dict) else None
        if not isinstance(result, dict):
            continue
        name = result.get("info", {}).get("game_name")
        if name in ("clobber", "gin_rummy"):
            openings.append({"name": name, **result})
    return openings


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run per transcript."""
    train = load("train_api.jsonl")
    transcripts = {
        "graded_episode": load("evaluate.jsonl"),
        "train_episode": [entry for entry in train if "group" not in entry],
        "refusals": [entry for entry in train if entry.get("group") in _REFUSALS],
        "opening": _openings(train),
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
