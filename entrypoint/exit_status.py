"""Every exit status of the container, each with one meaning; docs/exit-statuses.md repeats them.

Invariant: once arguments and base have been read, `OK` is returned exactly if the folder at the
output path verifies as a model, however the run went: the validator uploads nothing after any other
status. Settings by hand, which validators do not give, make a run that cannot begin name its cause
although an earlier model lies there.
"""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit statuses; those from 10 come from checks before the run, those from 20 from the run."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitStatus:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "a verified model is at the output path"
    INTERNAL = 1, "the orchestrator itself failed: a defect"
    ARGUMENTS = 2, "an argument or an environment variable cannot be used"
    MODEL = 10, "the base model's folder is missing, unreadable or incomplete"
    ENVIRONMENT = (
        12,
        "the chosen channel needs environment servers: none is named, or none answered and not "
        "even the base could be published",
    )
    OUTPUT = 13, "the output path cannot be written"
    DISK = 14, "too little free disk for one model"
    TRAINER = 20, "the trainer failed more often than it may be restarted, and published nothing"
    STALLED = 21, "the trainer hung more often than it may be restarted, and published nothing"
    INFERENCE = (
        22,
        "the inference server did not come up or kept crashing, and nothing is published",
    )
    DEADLINE = 23, "the time was over before a model was published"
    STOPPED = 24, "asked to stop (SIGTERM) before a model was published"
    UNVERIFIED = 25, "the trainer reported success, but no model is at the output path"
    SUPERVISOR = 26, "supervisord or the watchdog ended unasked, and nothing is published"
    REFUSED = 27, "the trainer refused its settings or could not be started, at the first attempt"

    @property
    def label(self) -> str:
        """The name as the last line of output shows it, e.g. "trainer"."""
        return self.name.lower()


class Failure(Exception):
    """A condition that ends the container: one sentence with what failed and the way out."""

    def __init__(self, status: ExitStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
