"""What the check of a channel found that only runs one trial."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text


@dataclass(frozen=True, slots=True)
class TrialFindings:
    """The trial ran.

    Attributes:
        channel: that was tried.
        environment: what is played there.
        reason: what was found, in a sentence.
        scoring: what a score says, in a sentence; empty where the report need not say it.
    """

    channel: str
    environment: str
    reason: str
    scoring: str = ""

    @property
    def warning(self) -> str:
        """There is none: a trial that fails is an error."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """For `probe.json`."""
        return asdict(self)

    def shown(self) -> Text:
        """For a terminal."""
        return Text(f"channel {self.channel}: {self.reason}")
