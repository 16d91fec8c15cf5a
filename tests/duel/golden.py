"""The tournament's transcripts: from ../shared where they are, else our extract without prose."""

from pathlib import Path
from typing import Any

import pytest

from miner.duel import table
from tests.duel.make_extract import GAMES, RECORDINGS, Line, digest, extract, read

SHARED = Path(__file__).resolve().parents[3] / "shared" / "golden" / "duel"

needs_transcripts = pytest.mark.skipif(
    not SHARED.is_dir(),
    reason="no recordings beside the checkout",
)

__all__ = ["GAMES", "SHARED", "Line", "digest", "golden", "needs_transcripts", "transcript"]


def golden(name: str) -> list[Line]:
    """An extract by name, made on the spot where the transcripts are at hand."""
    return extract(SHARED, name) if SHARED.is_dir() else read(RECORDINGS / f"{name}.jsonl")


def transcript(name: str) -> list[Line]:
    """A transcript with its prose (`needs_transcripts`)."""
    return read(SHARED / f"{name}.jsonl")


def first(lines: list[Line], **wanted: Any) -> Line:
    """The first line with these values."""
    return next(
        line for line in lines if all(line.get(key) == value for key, value in wanted.items())
    )


def stuck_game(monkeypatch: pytest.MonkeyPatch) -> Line:
    """The recorded gin rummy that ends where nobody can move, its configuration the one dealt."""
    line = next(line for line in golden("forfeits") if line["scenario"].startswith("no_legal"))
    configuration = 3 * (line["params"]["hand_size"] - 7) + 10 - line["params"]["knock_card"]
    monkeypatch.setattr(table, "configuration_of", lambda game, seed: configuration)
    return line
