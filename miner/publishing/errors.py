"""Typed failures of publishing. After any of them the model published before is untouched."""


class PublishingError(RuntimeError):
    """A model could not be written, merged or put in place (disk, permissions, lock, crash)."""


class UnverifiedModelError(PublishingError):
    """A model folder is not what the grader can load; the one sentence names folder and defect."""
