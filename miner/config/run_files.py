"""Files of a run that several processes look at, and how they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HEARTBEAT_FILE: Final = "heartbeat.json"
EPISODES_FILE: Final = "episodes.jsonl"
CHECKPOINTS: Final = "checkpoints"
BEST_FILE: Final = "best.json"
REVERT_FILE: Final = "revert.json"
BEST_WEIGHTS_FILE: Final = "best-weights.safetensors"
COMPLETE: Final = "complete.json"
"""Written into a checkpoint last: one without it is never resumed from."""


def has_checkpoint(run_dir: Path) -> bool:
    """Return whether there is a complete checkpoint of an optimizer step to continue from."""
    return any((run_dir / CHECKPOINTS).glob(f"checkpoint-[1-9]*/{COMPLETE}"))


def has_begun(run_dir: Path) -> bool:
    """Return whether there is anything to resume: a checkpoint, or scores of a published model."""
    return has_checkpoint(run_dir) or (run_dir / BEST_FILE).exists()


def write_atomically(path: Path, text: str) -> None:
    """Replace `path`, so that a reader or a kill never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
