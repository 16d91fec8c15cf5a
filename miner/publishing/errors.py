"""Typed failures of publishing. After any of them the model published before is untouched."""

from pathlib import Path


class PublishingError(RuntimeError):
    """A model could not be written, merged or put in place (disk, permissions, lock, crash)."""


class LockedError(PublishingError):
    """Another process holds a lock.

    Attributes:
        owner: that process in words, with its pid.
    """

    def __init__(self, file: Path, owner: str) -> None:
        super().__init__(
            f"{file} is locked: {owner} is publishing to the same folder; let only the main "
            "process publish."
        )
        self.owner = owner


class UnverifiedModelError(PublishingError):
    """A model folder is not what the grader can load; the one sentence names folder and defect."""
