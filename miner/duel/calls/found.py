"""Calls as parsers find them and writers are given them, and what several forms share."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Found = tuple[str, Any]
"""A tool's name and its arguments, decoded."""

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments, to be written."""

Offered = Mapping[str, Mapping[str, Any]]
"""By the name of each offered tool, its parameters' JSON schemas by name."""


def between(text: str, begin: str, end: str, *, last: bool = False) -> Iterator[str]:
    """The text between each `begin` and the next `end`; with `last`, also after one without."""
    start = text.find(begin)
    while start != -1:
        stop = text.find(end, start + len(begin))
        if stop == -1:
            if last:
                yield text[start + len(begin) :]
            return
        yield text[start + len(begin) : stop]
        start = text.find(begin, stop + len(end))


def as_json(value: Any) -> str:
    """JSON with all characters as they are."""
    return json.dumps(value, ensure_ascii=False)
