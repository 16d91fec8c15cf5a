"""Parts of a scene that several games have: boards, cards."""

from collections.abc import Sequence

from miner.games.base import Scene


def board(
    kind: str, cells: list[list[str]], marks: Sequence[tuple[int, int]], ranks: list[str]
) -> Scene:
    """Squares with what stands on them; `marks` are rows and columns of the latest move."""
    return {
        "kind": kind,
        "cells": cells,
        "marks": [list(mark) for mark in marks],
        "ranks": ranks,
        "files": "abcdefghij"[: len(cells[0])],
    }


def suited(text: str, *, mark: bool = False) -> Scene:
    """A card with a suit, such as `J♠`."""
    return {"card": text, "red": text[-1] in "♥♦", "mark": mark}


def card(value: int, *, dim: bool = False, mark: bool = False) -> Scene:
    """A card with a number."""
    return {"card": str(value), "dim": dim, "mark": mark}
