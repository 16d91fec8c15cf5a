"""Teachers: a chance to win for every legal move, from what a turn's prompt shows.

Invariant: a teacher gets a `Seen` and nothing else, so no label depends on a hidden card.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from miner.config.contract import LONG_TERM, MEMORY_SLOTS
from miner.duel.memory import EMPTY
from miner.duel.turn import Request

_TURN = re.compile(
    r"Current state:\n(.*)\n\nYou are Player ([01])\.\nLegal actions:\n((?:\d+ -> .*\n?)+)",
    re.DOTALL,
)
_SLOT = re.compile(r"^  \[\d\] (.*)$", re.MULTILINE)

Values = dict[int, float]
"""Chance to win (a draw is half of one) by legal action id."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of a turn's prompt that a move may depend on.

    Attributes:
        state: text of the state, as the player is shown it.
        player: the seat that is asked, 0 or 1.
        actions: labels of the legal actions by id, ascending; none after a game.
        notes: first lines of the long-term notes on the opponent, of those that are written.
    """

    state: str
    player: int
    actions: Mapping[int, str]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(request: Request) -> Seen:
        """Read a request's texts."""
        table, player = request.table, request.player
        actions = {action: table.label(player, action) for action in request.legal}
        return Seen(table.text(player), player, actions, _notes(request.notes.render()))

    @staticmethod
    def read(user: str, system: str = "") -> Seen | None:
        """The same from a turn's messages; None for any other text."""
        found = _TURN.fullmatch(user)
        if found is None:
            return None
        state, player, listed = found.groups()
        lines = (line.partition(" -> ") for line in listed.splitlines())
        actions = {int(action): label for action, _, label in lines}
        return Seen(state, int(player), actions, _notes(system))

    @property
    def seed(self) -> int:
        """For searches and samples, so that equal prompts have equal labels."""
        return Random(f"{self.player} {self.state}").getrandbits(31)

    def field(self, name: str) -> str:
        """Rest of the line that begins with `name` and a colon. Raises: `ValueError`."""
        for line in self.state.splitlines():
            if line.startswith(f"{name}:"):
                return line.removeprefix(f"{name}:").strip()
        raise ValueError(f"no line {name!r} in {self.state[:120]!r}")


class Teacher(Protocol):
    """Knows one game.

    Attributes:
        notes: all that it can write on an opponent.
    """

    notes: tuple[str, ...]

    def values(self, seen: Seen) -> Values:
        """Chance to win after each legal action. Raises: `ValueError` for a text it cannot read."""

    def move(self, seen: Seen) -> int:
        """The move that it teaches."""

    def note(self, seen: Seen) -> str:
        """A note on the opponent at a game's end, for the next one; empty: none is written."""


class ByValue:
    """Teaches the move with the highest value, and writes no notes."""

    notes: tuple[str, ...] = ()

    def values(self, seen: Seen) -> Values:
        raise NotImplementedError

    def move(self, seen: Seen) -> int:
        return best(self.values(seen))

    def note(self, seen: Seen) -> str:
        return ""


def best(values: Values) -> int:
    """The move with the highest value; of equal ones the lowest id."""
    return max(values, key=lambda action: (values[action], -action))


def chance(lead: float, scale: float) -> float:
    """A lead in units of a heuristic as a chance: 0.5 at 0, 0.73 at `scale`."""
    return 1 / (1 + math.exp(-lead / scale))


def _notes(shown: str) -> tuple[str, ...]:
    """The long-term notes in a text that ends with them, or with them and instructions."""
    area = shown.rpartition(f"{LONG_TERM.upper()} (your notes):")[2]
    return tuple(note for note in _SLOT.findall(area)[: MEMORY_SLOTS[LONG_TERM]] if note != EMPTY)
