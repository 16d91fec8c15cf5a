"""Counts of a channel about the truth of its servers; one object per source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ChannelStats:
    """Running counts over all episodes of a source.

    Attributes:
        asked: actions sent whose effect could be observed.
        applied: those of them that the game really made.
        disagreements: replies that the server judged otherwise than our copy of its parser.
    """

    asked: int = 0
    applied: int = 0
    disagreements: int = 0

    def count(self, asked: int, applied: int) -> None:
        """Record the action asked for and the one the game made."""
        self.asked += 1
        self.applied += asked == applied

    @property
    def applied_rate(self) -> float | None:
        """Share of actions that were applied as asked; None before the first."""
        return self.applied / self.asked if self.asked else None
