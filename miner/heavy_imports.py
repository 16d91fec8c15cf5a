"""Importing torch and what stands on it, in less time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import within: nothing is searched for garbage, then or later, that stays to the end.

    A sixth of the processor time of a trainer's start went into looking through its modules, and
    as long as there are hundreds of thousands of objects each collection is a third of a second.
    """
    quiet_deepspeed()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quiet_deepspeed() -> None:
    """Drop DeepSpeed's warning, at its import by TRL, that the machine has no GPU (idempotent)."""
    logging.getLogger("DeepSpeed").addFilter(_is_not_of_the_accelerator)


def _is_not_of_the_accelerator(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU")
