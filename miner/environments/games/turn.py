"""What one turn shows the agent, apart from any wording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One decision of the agent.

    Attributes:
        state_text: the state block, verbatim.
        seat: the player that the agent is.
        labels: label of each legal action id, ascending by id.
    """

    state_text: str
    seat: int
    labels: Mapping[int, str]
