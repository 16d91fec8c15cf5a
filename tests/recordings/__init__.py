"""Answers of the real environment server: recordings, or the extract that this folder keeps.

The recordings hold sentences that are not ours to ship. They are read where a folder
`shared/golden` lies beside the repository; elsewhere the extract is, which has the numbers, flags,
state blocks and labels of them and a hash in the place of each sentence (`extract.py` makes it).
Both give rows of the same form, so that a test need not know which it sees.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
WHOLE = FOLDER.parents[2] / "shared" / "golden"
FILES = ("train_api.jsonl", "evaluate.jsonl", "evaluate_errors.json")


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
    """A row with each message once: its chats are beginnings of its conversation."""
    talk = _extra(row).get("conversation", ())
    for number, chat in enumerate(row.get("chats", ()) if talk else ()):
        assert chat["request"].pop("messages") == talk[: 2 * number + 2]
    return row


def unpack(row: dict[str, Any]) -> dict[str, Any]:
    """The row that `pack` was given."""
    talk = _extra(row).get("conversation", ())
    for number, chat in enumerate(row.get("chats", ()) if talk else ()):
        chat["request"]["messages"] = talk[: 2 * number + 2]
    return row


def _extra(row: dict[str, Any]) -> dict[str, Any]:
    """What a graded episode's answer says beyond the score; empty for all others."""
    response = row.get("response")
    result = response.get("result") if isinstance(response, dict) else None
    return result.get("extra", {}) if isinstance(result, dict) else {}
