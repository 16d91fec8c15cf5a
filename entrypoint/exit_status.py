"""Every exit status of the container, each with one meaning: docs/exit-statuses.md.

Invariant: once arguments and base have been read, `OK` is returned exactly if the folder at the
output path verifies as a model, however the run went: the validator uploads nothing after any other
status. Settings by hand, which validators do not give, make a run that cannot begin name its cause
although an earlier model lies there.
"""

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses; those from 10 come from checks before the run, those from 20 from the run."""

    OK = 0
    INTERNAL = 1
    ARGUMENTS = 2
    MODEL = 10
    ENVIRONMENT = 12
    OUTPUT = 13
    DISK = 14
    TRAINER = 20
    STALLED = 21
    INFERENCE = 22
    DEADLINE = 23
    STOPPED = 24
    UNVERIFIED = 25  # the trainer reported success, but no model is at the output path
    SUPERVISOR = 26
    REFUSED = 27  # the trainer refused its settings or could not be started, at the first attempt

    @property
    def label(self) -> str:
        """The name as the last line of output shows it, e.g. "trainer"."""
        return self.name.lower()


class Failure(Exception):
    """A condition that ends the container: one sentence with what failed and the way out."""

    def __init__(self, status: ExitStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
