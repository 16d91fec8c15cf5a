"""Files of a run that several processes look at, and how they are written."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEARTBEAT_FILE: Final = "heartbeat.json"
EPISODES_FILE: Final = "episodes.jsonl"
CHECKPOINTS: Final = "checkpoints"
SETTINGS_FILE: Final = "settings.toml"
BEST_FILE: Final = "best.json"
PUBLICATION_FILE: Final = "base_publication.json"
"""Seconds that the base's publication took, as later ones will."""
REVERT_FILE: Final = "revert.json"
BEST_WEIGHTS_FILE: Final = "best-weights.safetensors"
WEIGHT_FILE: Final = "weights-on-their-way.safetensors"
"""To an inference server; one that a kill left there is overwritten by the next push."""
COMPLETE: Final = "complete.json"
"""Written into a checkpoint last: one without it is never resumed from."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder, its optimizer step and the training seconds until then."""

    path: Path
    step: int
    elapsed: float


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the complete checkpoint with the highest step, None without one."""
    found = []
    for path in folder.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d+)", path.name)
        try:
            marker = json.loads((path / COMPLETE).read_text())
        except (OSError, ValueError):
            continue
        if match and marker.get("step") == int(match[1]):
            found.append(Checkpoint(path, marker["step"], float(marker["elapsed"])))
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


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
