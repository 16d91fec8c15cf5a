"""Importing torch and what stands on it, in less time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import within: nothing is searched for garbage, then or later, that stays to the end.

    A sixth of the processor time of a trainer's start went into looking through its modules, and
    as long as there are hundreds of thousands of objects each collection is a third of a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
