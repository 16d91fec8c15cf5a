"""Transcripts of the real server, where they lie next to the repository.

Tests that take `graded_episode`, `graded_case`, `train_episode`, `refusals` or `opening` run once
per transcript, and are skipped where the transcripts are absent.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parents[3].parent / "shared" / "golden"

_REFUSALS = ("step_bad_actions_live_episode", "invalid_action_16_cards")


@cache
def _read(name: str) -> list[dict[str, Any]]:
    path = GOLDEN / name
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def _graded_cases() -> list[dict[str, Any]]:
    """Cases of evaluate_errors.json in which a game was started."""
    cases = []
    for case in _read("evaluate_errors.json"):
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
    train = _read("train_api.jsonl")
    transcripts = {
        "graded_episode": _read("evaluate.jsonl"),
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
    episodes = _read("evaluate.jsonl")
    if not episodes:
        pytest.skip("no transcripts of the real server")
    return episodes
