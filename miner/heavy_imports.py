"""Importing torch and what stands on it: in less time, and without its noise."""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # transformers' bars, too
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Read when these packages are imported, also by processes that this one starts."""


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


def quiet_libraries() -> None:
    """Drop progress bars, and DeepSpeed's warning at its import that the machine has no GPU.

    Every program calls it first; it may be called again.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if (loaded := sys.modules.get("transformers.utils.logging")) is not None:
        loaded.disable_progress_bar()
    logging.getLogger("DeepSpeed").addFilter(_is_not_of_the_accelerator)


def _is_not_of_the_accelerator(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU")
