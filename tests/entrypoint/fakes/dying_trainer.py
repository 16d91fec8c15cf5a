"""`python -m miner`, killed by SIGKILL as soon as its first checkpoint is complete; once.

Nothing of the trainer is replaced: the kill comes after what it does when it has saved.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.__main__ import main
from miner.training.checkpoints import CheckpointMarker

mark = CheckpointMarker.on_save


def mark_and_die(
    marker: CheckpointMarker,
    args: TrainingArguments,
    state: TrainerState,
    control: TrainerControl,
    **more: Any,
) -> None:
    mark(marker, args, state, control, **more)
    killed = Path(str(args.output_dir)).parent / "killed"
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


CheckpointMarker.on_save = mark_and_die  # type: ignore[method-assign]
main()
