"""What the real environment server answered: recordings, or the extract that this folder keeps.

The recordings hold sentences that are not ours to ship. They are read where a folder
`shared/golden` lies beside the repository; elsewhere the extract is, which has the numbers, flags,
state blocks and labels of them and a hash in the place of each sentence (`extract.py` makes it).
Both give rows of the same form, so that a test need not know which it sees.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.recordings.chain import fold, unfold

FOLDER = Path(__file__).resolve().parent
WHOLE = FOLDER.parents[2] / "shared" / "golden"
FILES = ("train_api.jsonl", "evaluate.jsonl", "evaluate_errors.json")
_FOLDED = ("calls", "chats")


@cache
def load(name: str) -> list[dict[str, Any]]:
    """Rows of a recording, or of its extract where the recording is not at hand."""
    whole = WHOLE / name
    return read_recording(whole) if whole.is_file() else read_extract(name)


def read_recording(path: Path) -> list[dict[str, Any]]:
    """Rows of a file as it was recorded."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else list(map(json.loads, text.splitlines()))


def read_extract(name: str) -> list[dict[str, Any]]:
    """Rows of the extract of recording `name`."""
    path = (FOLDER / name).with_suffix(".jsonl")
    return [unpack(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def pack(row: dict[str, Any]) -> dict[str, Any]:
    """A row without repetition: each message once, lists of alike things by what changes."""
    row = dict(row)
    extra = _extra(row)
    if extra.get("conversation"):
        talk = extra.pop("conversation")
        row["conversation"] = [fold(talk[0::2]), fold(talk[1::2])]
        for n, chat in enumerate(row.get("chats", ())):
            assert chat["request"].pop("messages") == talk[: 2 * n + 2]
    if "action_history" in extra:
        extra["action_history"] = fold(extra["action_history"])
    return {name: fold(row[name]) if name in _FOLDED else row[name] for name in row}


def unpack(row: dict[str, Any]) -> dict[str, Any]:
    """The row that `pack` was given."""
    row = {name: unfold(row[name]) if name in _FOLDED else row[name] for name in row}
    extra = _extra(row)
    if "action_history" in extra:
        extra["action_history"] = unfold(extra["action_history"])
    if "conversation" in row:
        others, asked = map(unfold, row.pop("conversation"))
        talk = [message for pair in zip_longest(others, asked) for message in pair if message]
        extra["conversation"] = talk
        for n, chat in enumerate(row.get("chats", ())):
            chat["request"]["messages"] = talk[: 2 * n + 2]
    return row


def _extra(row: dict[str, Any]) -> dict[str, Any]:
    """What a graded episode's answer says beyond the score; empty for all others."""
    response = row.get("response")
    result = response.get("result") if isinstance(response, dict) else None
    return result.get("extra", {}) if isinstance(result, dict) else {}
