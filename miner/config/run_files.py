"""Files of the trainer's run_dir that its watchdog looks at too."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HEARTBEAT_FILE: Final = "heartbeat.json"
CHECKPOINTS: Final = "checkpoints"
COMPLETE: Final = "complete.json"
"""Written into a checkpoint last: one without it is never resumed from."""

KEPT_CHECKPOINTS: Final = 3
"""At most: the best weights', the newest, and the one before until that is complete. While one is
written there is one more."""


def has_checkpoint(run_dir: Path) -> bool:
    """Whether there is a complete checkpoint to go on from."""
    return any((run_dir / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}"))
