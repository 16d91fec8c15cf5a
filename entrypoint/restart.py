"""Decision after a trainer attempt: done, another attempt, or the end of the run.

Invariants: at most `max_restarts` restarts, and one for each rung of the ladder or smaller share
for vLLM that memory trouble takes, and for each loss of environment servers; a setting is only ever
lowered (see `ladder`); the decision depends on the ends so far and on nothing else.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from entrypoint.exit_status import ExitStatus
from entrypoint.ladder import LADDER, smaller_share, step_down, without_vllm
from entrypoint.outcome import Outcome
from miner.config.settings import Settings
from miner.config.statuses import TrainerStatus

SIGNALLED = -1  # supervisord's word for a process that a signal ended


class EndKind(Enum):
    """Kind of an attempt's end."""

    PUBLISHED = "it published its model"
    OUT_OF_MEMORY = "it ran out of memory"
    ENGINE_OUT_OF_MEMORY = "its vLLM ran out of memory"
    KILLED = "it was killed from outside, as the kernel does when memory is short"
    CRASHED = "it crashed"
    UNWRITTEN = "it could not write its model"
    UNREACHABLE = "it lost its environment servers"
    INFERENCE_LOST = "it lost its inference server"
    HUNG = "it hung"
    REFUSED = "it refused its settings"
    OUT_OF_TIME = "the time was over"
    UNSERVED = "the inference server did not stay up"


@dataclass(frozen=True)
class AttemptEnd:
    """End of an attempt, with the details for the log."""

    kind: EndKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind.value} ({self.detail})" if self.detail else self.kind.value


@dataclass(frozen=True)
class NextAttempt:
    """Start the trainer again with these settings, `rungs` of the ladder taken so far."""

    settings: Settings
    rungs: int
    reason: str


SHARES_FIRST = 2
"""Smaller shares for vLLM before the ladder."""

_MEMORY_TROUBLE = (EndKind.OUT_OF_MEMORY, EndKind.ENGINE_OUT_OF_MEMORY, EndKind.KILLED)

_FINAL_STATUS = {
    EndKind.HUNG: ExitStatus.STALLED,
    EndKind.UNREACHABLE: ExitStatus.ENVIRONMENT,
    EndKind.OUT_OF_TIME: ExitStatus.DEADLINE,
    EndKind.UNSERVED: ExitStatus.INFERENCE,
    EndKind.INFERENCE_LOST: ExitStatus.INFERENCE,
}


def end_of_exit(exit_status: int) -> AttemptEnd:
    """Meaning of an exit status of the trainer."""
    kind = {
        TrainerStatus.PUBLISHED: EndKind.PUBLISHED,
        TrainerStatus.OUT_OF_MEMORY: EndKind.OUT_OF_MEMORY,
        TrainerStatus.ENGINE_OUT_OF_MEMORY: EndKind.ENGINE_OUT_OF_MEMORY,
        TrainerStatus.REFUSED: EndKind.REFUSED,
        TrainerStatus.DISK: EndKind.UNWRITTEN,
        TrainerStatus.UNREACHABLE: EndKind.UNREACHABLE,
        TrainerStatus.INFERENCE_LOST: EndKind.INFERENCE_LOST,
        SIGNALLED: EndKind.KILLED,
    }.get(exit_status, EndKind.CRASHED)
    return AttemptEnd(kind, "by a signal" if exit_status < 0 else f"exit status {exit_status}")


def after_attempt(
    ends: Sequence[AttemptEnd],
    settings: Settings,
    rungs: int,
    max_restarts: int,
    *,
    begun: bool = False,
    waited: int = 0,
    adapter_learning_rate: float | None = None,
    least_share: float = 0.1,
) -> NextAttempt | Outcome:
    """Decide after the last of `ends`.

    Memory trouble takes a rung of the ladder at once; that of vLLM in the trainer's process first
    takes `SHARES_FIRST` smaller shares for it. A first crash or hang is tried again as it was, and
    so is a disk that refuses, or a loss of environment or inference servers; a second crash takes a
    rung too, since memory trouble has many faces. vLLM is dropped after a second loss of the
    inference server (or hang, which may be one), a third crash, or where the server does not stay
    up.

    Args:
        begun, adapter_learning_rate: see `step_down`.
        waited: losses among `ends` of servers that were waited for: time ends those, no number.
        least_share: see `smaller_share`.
    """
    last = ends[-1]
    broken = last.kind in (EndKind.UNSERVED, EndKind.CRASHED)  # a loss or a hang may heal
    alone = without_vllm(settings, keep_stage=begun or not broken)
    if last.kind is EndKind.PUBLISHED:
        return Outcome(ExitStatus.UNVERIFIED, "the trainer has published its model")
    if last.kind is EndKind.OUT_OF_TIME or (last.kind is EndKind.UNSERVED and alone is None):
        return Outcome(_FINAL_STATUS[last.kind], f"the trainer was stopped: {last}")
    if last.kind is EndKind.REFUSED:
        status = ExitStatus.REFUSED if len(ends) == 1 else ExitStatus.TRAINER
        return Outcome(status, f"the trainer cannot start: {last}; see its last lines")
    kinds = Counter(end.kind for end in ends)
    shares = min(kinds[EndKind.ENGINE_OUT_OF_MEMORY], SHARES_FIRST)
    out_of_memory = sum(kinds[kind] for kind in _MEMORY_TROUBLE) - shares
    counted = len(ends) - shares - waited - min(out_of_memory, len(LADDER))
    if counted > max_restarts:
        status = _FINAL_STATUS.get(last.kind, ExitStatus.TRAINER)
        return Outcome(status, f"the trainer failed {len(ends)} times, at last {last}")
    crashes = kinds[EndKind.CRASHED]
    lost = kinds[EndKind.INFERENCE_LOST] + kinds[EndKind.HUNG]
    out_of_touch = lost > 1 and last.kind in (EndKind.INFERENCE_LOST, EndKind.HUNG)
    if alone and (last.kind is EndKind.UNSERVED or out_of_touch or crashes > 2):
        return NextAttempt(alone, rungs, f"{last}: again from its last checkpoint, without vLLM")
    lower = None
    if last.kind is EndKind.ENGINE_OUT_OF_MEMORY and (
        kinds[EndKind.ENGINE_OUT_OF_MEMORY] <= SHARES_FIRST
    ):
        lower = smaller_share(settings, rungs, least_share)
    if lower is None and (
        last.kind in _MEMORY_TROUBLE or (last.kind is EndKind.CRASHED and crashes > 1)
    ):
        lower = step_down(settings, rungs, begun=begun, adapter_learning_rate=adapter_learning_rate)
    if lower is None:
        return NextAttempt(settings, rungs, f"{last}: again from its last checkpoint, as it was")
    new_settings, rungs, lowered = lower
    return NextAttempt(new_settings, rungs, f"{last}: again from its last checkpoint, {lowered}")
