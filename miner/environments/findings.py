"""Result of any channel's check before training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

_WIDTH = 110
"""Columns of a picture in a file."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a check; it can be pickled.

    Attributes:
        channel: that was checked.
        reason: reason why one can train on it, in a sentence.
        environment: name of the environment.
        scoring: meaning of a score, in a sentence; empty where the report need not explain it.
        warning: reason why training may be in vain, printed before it; empty for none.
        repeated: the part of `warning` that is printed after training as well; None for all.
        notes: facts and remarks, a sentence each.
        picture: shown in a terminal before the sentences, and in the report.
        details: further keys of `probe.json`.
        for_opening: findings that spare `Channel.open` the same search in other processes.
    """

    channel: str
    reason: str
    environment: str = ""
    scoring: str = ""
    warning: str = ""
    repeated: str | None = None
    notes: tuple[str, ...] = ()
    picture: RenderableType | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    for_opening: Any = None

    def shown(self) -> Group:
        """For a terminal."""
        picture = [] if self.picture is None else [self.picture]
        sentences = (f"channel {self.channel}: {self.reason}", *self.notes)
        return Group(*picture, *map(Text, sentences))

    def to_json(self) -> dict[str, Any]:
        """For `probe.json`."""
        known = ("channel", "reason", "environment", "scoring", "warning")
        console = Console(width=_WIDTH, color_system=None)
        with console.capture() as picture:
            console.print(self.picture or "")
        return {name: getattr(self, name) for name in known} | {
            "notes": list(self.notes),
            "picture": picture.get().rstrip(),
            **self.details,
        }
