"""Exit statuses of the trainer's process, for its parent."""

from enum import IntEnum


class TrainerStatus(IntEnum):
    """Exit statuses of `python -m miner`; the orchestrator decides by them what is next."""

    PUBLISHED = 0
    CRASHED = 1
    """A defect, or training that diverged: again from the last checkpoint."""
    REFUSED = 2
    """The settings must change: another attempt is futile."""
    UNREACHABLE = 69
    """No environment server can be used."""
    DISK = 74
    """A model could not be written or verified."""
    OUT_OF_MEMORY = 75
    """With less it would continue."""
    INFERENCE_LOST = 76
    """The inference server was lost, or does not take weights."""
    ENGINE_OUT_OF_MEMORY = 77
    """vLLM in the trainer's process: with a smaller share of the GPU it would continue."""
    INTERRUPTED = 130
    """Ctrl-C ended an evaluation or a league; what was played is written."""
