"""Makes the extracts of this folder from recordings of the real environment server.

    python -m tests.recordings.extract FOLDER

FOLDER holds train_api.jsonl, evaluate.jsonl and evaluate_errors.json. What stays is the wire
format: numbers, flags, names, state blocks, labels, and the replies that the recorder sent. Every
sentence of the server is replaced by a hash, so that equal sentences stay equal and no prose is
copied. What is not known as wire format counts as prose.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.recordings import FILES, FOLDER, pack, read_recording

STANDARD = ("Not Found", "Method Not Allowed")
"""Details that HTTP frameworks give by themselves."""
HEADERS = {"authorization", "content-type"}
"""All that stays of the headers of a chat request."""
_RULES = re.compile(r"(?s)\A# Game Rules\n(.*)\n\n# Current Game State\n")
_REFUSED = re.compile(r'(?s)\A(Invalid action: ".*?")\n\n(.*?)\n\n(?=Legal Actions:\n)')
_WIRE = re.compile(
    r"# Game Rules\n|Game( Over)?: |Invalid action: |Current point card: |\[Observer: |[\d -]+\Z"
)
_ATTEMPT = re.compile(r"attempt \d of \d")
_PARAMETERS = re.compile(r"(?:\((?:self, )?|, )(\w+)(?=[:=,)])")


def without_prose(value: Any, key: str = "") -> Any:
    """A recorded value with hashes in the place of sentences."""
    if isinstance(value, dict) and "role" in value:
        return {**value, "content": _message(value["role"], value["content"])}
    if isinstance(value, dict):
        kept = value.keys() & HEADERS or value.keys() - {"note", "response_raw"}
        return {name: without_prose(inner, name) for name, inner in value.items() if name in kept}
    if isinstance(value, list):
        return [without_prose(inner, key) for inner in value]
    return _text(value, key) if isinstance(value, str) else value


def _text(text: str, key: str) -> str:
    if key == "observation":
        return _observation(text)
    if key == "signature":
        return f"({', '.join(_PARAMETERS.findall(text))})"
    if key == "error" and text.startswith("["):
        kind, _, reason = text.partition("] ")
        return f"{kind}] {_hash(reason)}"
    is_prose = key in ("message", "detail", "error", "sdk_style", "restful_style")
    return _hash(text) if is_prose and text not in STANDARD else text


def _message(role: str, text: str) -> str:
    """A chat message; the number of the attempt is all that stays of a reminder."""
    if role == "assistant" or text.startswith("Current State:\n"):
        return text
    attempt = _ATTEMPT.search(text)
    if attempt is None:
        return _hash(text)
    return f"{_hash(text[: attempt.start()])} {attempt[0]} {_hash(text[attempt.end() :])}"


def _observation(text: str) -> str:
    """What /reset, /step and /state show, without rules and reminders."""
    text = _RULES.sub(lambda m: f"# Game Rules\n{_hash(m[1])}\n\n# Current Game State\n", text)
    text = _REFUSED.sub(lambda m: f"{m[1]}\n\n{_hash(m[2])}\n\n", text)
    return text if _WIRE.match(text) else _hash(text)


def _hash(text: str) -> str:
    return f"<text {hashlib.sha256(text.encode()).hexdigest()[:8]}>"


def extracted(name: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of recording `name` that are kept, without prose."""
    rows = read_recording(folder / name)
    plain = [row for row in rows if row.get("style") == "rest"]
    left_out = plain[1::2]  # alike, and the extract is to stay small
    return [without_prose(row) for row in rows if row not in left_out]


def main(folder: Path) -> None:
    """Write the extract of each recording in `folder`."""
    for name in FILES:
        rows = [pack(row) for row in extracted(name, folder)]
        lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        (FOLDER / name).with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
