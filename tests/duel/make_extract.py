"""Makes recordings/ from the tournament's transcripts: everything but its prose.

    python tests/duel/make_extract.py FOLDER

Texts that hold the tournament's sentences are left out or stand as hashes; numbers, ids, outcomes
and notes of the scripted players stay.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parent / "recordings"
GAMES = ("clobber", "gin_rummy", "goofspiel", "leduc_poker", "liars_dice", "othello")

Line = dict[str, Any]


def read(path: Path) -> list[Line]:
    """The lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digest(text: str) -> str:
    """A short hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def games(folder: Path, name: str) -> Iterator[Line]:
    """The games of one environment; texts of prompts as hashes, calls in short."""
    lines = read(folder / f"games_{name}.jsonl")
    notes = {line["id"]: digest(line["text"]) for line in lines if line["type"] == "memory"}
    for line in lines:
        if line["type"] == "game":
            yield line | {"calls": [_call(call, notes) for call in line["calls"]]}


def _call(call: Line, notes: dict[str, str]) -> list[Any]:
    """Player, kind, notes, hash of the state block (of the whole turn), replies, move."""
    kind, user = call["kind"], call["user"]
    shown = user
    if kind == "reflection":
        shown = user.split("Final state:\n", 1)[1].rsplit("\n\n", 1)[0]
    plain = [["game_action", json.dumps({"action_id": call.get("action")})]]
    calls = None if call["tool_calls"] == plain else call["tool_calls"]
    return [call["player"], kind, notes[call["memory"]], digest(shown), calls, call.get("action")]


def forfeits(folder: Path) -> Iterator[Line]:
    """Scenarios of forfeits; the one reflection's text as the state block's hash."""
    for line in read(folder / "forfeits.jsonl"):
        if "first_reflection_user" in line:
            text = line["first_reflection_user"]
            line["first_reflection_user"] = digest(
                text.split("Final state:\n", 1)[1].rsplit("\n\n", 1)[0]
            )
        yield line


def tools(folder: Path) -> Iterator[Line]:
    """Tool schemas without their descriptions."""
    for line in read(folder / "tools.jsonl"):
        yield line | {"tool": without_descriptions(line["tool"])}


def memory(folder: Path) -> Iterator[Line]:
    """Sequences of edits, each with what became of it in a word."""
    for line in read(folder / "memory.jsonl"):
        edits = [edit | {"result": _fate(edit["result"])} for edit in line["ops"]]
        yield line | {"ops": edits}


def _fate(result: str) -> str:
    if result.startswith("error"):
        return "refused"
    return "cut" if result.endswith(")") else "stored"


def without_descriptions(value: Any) -> Any:
    """`value` with every description replaced by nothing."""
    if isinstance(value, dict):
        return {
            key: "" if key == "description" else without_descriptions(entry)
            for key, entry in value.items()
        }
    return [without_descriptions(entry) for entry in value] if isinstance(value, list) else value


def extract(folder: Path, name: str) -> list[Line]:
    """The extract called `name` of the transcripts in `folder`."""
    if name.startswith("games_"):
        return list(games(folder, name.removeprefix("games_")))
    made = _MADE.get(name)
    return list(made(folder)) if made else read(folder / f"{name}.jsonl")


_MADE = {"forfeits": forfeits, "tools": tools, "memory": memory}

NAMES = (*(f"games_{name}" for name in GAMES), *_MADE, "matchups", "scoring")


def main(folder: Path) -> None:
    """Write all extracts."""
    RECORDINGS.mkdir(exist_ok=True)
    for name in NAMES:
        text = "".join(
            json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"
            for line in extract(folder, name)
        )
        (RECORDINGS / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
