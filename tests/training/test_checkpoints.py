"""Which checkpoints are written."""

from pathlib import Path

from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.training.checkpoints import SecondsApart


def saved(tmp_path: Path, apart: SecondsApart, *, stopping: bool = False) -> bool:
    """Whether a step whose checkpoint is due writes one."""
    args, state = TrainingArguments(str(tmp_path)), TrainerState()
    control = TrainerControl(should_save=True, should_training_stop=stopping)
    apart.on_step_end(args, state, control)
    if control.should_save:
        apart.on_save(args, state, control)
    return control.should_save


def test_checkpoints_are_as_far_apart_as_is_said_but_for_the_last(tmp_path: Path) -> None:
    now = [0.0]
    apart = SecondsApart(600, clock=lambda: now[0])
    written = []
    for now[0] in (100, 599, 600, 700, 1199, 1200):
        written.append(saved(tmp_path, apart))
    assert written == [False, False, True, False, False, True]
    now[0] = 1201
    assert saved(tmp_path, apart, stopping=True)
