"""A list of JSON objects of which each says only what differs from the one before it.

A change maps dotted names to new values, and `-` to the names that went. A text of several lines
that changed in parts is written as a list of edits instead: [first line, lines dropped, new text].
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

GONE = "-"
EDITS = "edits"


def fold(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each document as a change of the one before, the first as a change of nothing."""
    flat = [{}, *(dict(_flat(document)) for document in documents)]
    return [_change(old, new) for old, new in pairwise(flat)]


def unfold(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The documents that `fold` was given."""
    flat: dict[str, Any] = {}
    documents = []
    for change in changes:
        flat = _changed(flat, change)
        documents.append(_nested(flat))
    return documents


def _flat(document: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        assert "." not in name
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for path, value in flat.items():
        *outer, name = path.split(".")
        inner = document
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[name] = value
    return document


def _change(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    gone = [path for path in old if path not in new]
    changed = {
        path: _edited(old.get(path), value)
        for path, value in new.items()
        if path not in old or not _same(old[path], value)
    }
    return {**({GONE: gone} if gone else {}), **changed}


def _same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and old == new  # 0, 0.0 and false are not the same JSON


def _changed(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    new = {path: value for path, value in old.items() if path not in change.get(GONE, ())}
    for path, value in change.items():
        if path != GONE:
            new[path] = _rewritten(old.get(path), value)
    return new


def _edited(old: Any, new: Any) -> Any:
    """`new`, or the edits that make it of `old`, whichever is shorter."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return new
    before, after = old.split("\n"), new.split("\n")
    edits = [
        [i, j - i, "\n".join(after[k:n])]
        for what, i, j, k, n in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if what != "equal"
    ]
    return {EDITS: edits} if len(str(edits)) < len(new) else new


def _rewritten(old: Any, value: Any) -> Any:
    if not (isinstance(value, dict) and EDITS in value):
        return value
    lines = old.split("\n")
    for first, dropped, text in reversed(value[EDITS]):
        lines[first : first + dropped] = text.split("\n") if text else []
    return "\n".join(lines)
