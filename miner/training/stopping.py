"""Requests to stop, from the user or the orchestrator: leave the episodes, save, publish, exit."""

import signal
import threading
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from miner.distributed.ranks import Ranks
from miner.rollout.episode import RolloutStopped


class StopRequest(TrainerCallback):
    """Turns SIGTERM and SIGINT into a clean end; a second one is fatal.

    Episodes are aborted at their next turn, and their step with them; one whose episodes are
    over is finished.
    """

    def __init__(self) -> None:
        self.received: str | None = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.received is not None

    def install(self) -> None:
        """Take over both signals. Signals can only be handled in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.received:
            control.should_training_stop = True
            control.should_save = True


class StopConsensus(TrainerCallback):
    """Ends and saves on all ranks what any of them wants to end or save."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._begun = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raises: `RolloutStopped` where training is to end before this process's first step, which
        transformers would learn all the same."""
        if not self._begun and any(self._ranks.gather(control.should_training_stop)):
            raise RolloutStopped
        self._begun = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        flags = self._ranks.gather((control.should_training_stop, control.should_save))
        control.should_training_stop = any(stop for stop, _ in flags)
        control.should_save = any(save for _, save in flags)
