"""`python -m miner`, killed by SIGKILL as soon as its first checkpoint is complete; once.

Nothing of the trainer is replaced: the kill comes after what it does when it has saved. The weights
that training ends with go to `weights.safetensors` in the run's folder.
"""

import os
import signal
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.__main__ import main
from miner.learning.checkpoints import Checkpoints
from miner.learning.trainer import EpisodeTrainer

mark, train = Checkpoints.on_save, EpisodeTrainer.train


def mark_and_die(
    marker: Checkpoints,
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


def train_and_tell(trainer: EpisodeTrainer, *args: Any, **more: Any) -> Any:
    result = train(trainer, *args, **more)
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    save_file(weights, Path(trainer.args.output_dir).parent / "weights.safetensors")
    return result


EpisodeTrainer.train = train_and_tell
Checkpoints.on_save = mark_and_die  # type: ignore[method-assign]
main()
