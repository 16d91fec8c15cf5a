"""Outcome of a game: its result, its forfeit with the cause, and its usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from miner.duel.players.base import Reply
from miner.duel.tools import MOVE
from miner.duel.turn import Result
from miner.environments.base import ILLEGAL_ACTION

POINTS: dict[Result, float] = {"win": 1.0, "draw": 0.5, "loss": 0.0}
"""A game's part in a score."""


class Cause(StrEnum):
    """Cause of a forfeit."""

    NO_CALL = "no tool call"
    NO_MOVE = "no game_action"
    BAD_ARGUMENTS = "unreadable arguments"
    ILLEGAL = ILLEGAL_ACTION
    SLOW = "turn time-out"
    HTTP_SLOW = "HTTP time-out"
    CONTEXT = "context overflow"


@dataclass(frozen=True, slots=True)
class Forfeit:
    """A forfeit: the seat, the cause, and the reply (empty where there was none)."""

    player: int
    cause: Cause
    reply: str = ""


@dataclass(slots=True)
class Usage:
    """Totals of one player's requests of a game; reflections are counted apart."""

    turns: int = 0
    reflections: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, other: Usage) -> None:
        """Add another game's usage."""
        self.turns += other.turns
        self.reflections += other.reflections
        self.prompt_tokens += other.prompt_tokens
        self.tokens += other.tokens
        self.seconds += other.seconds


@dataclass(frozen=True, slots=True)
class Ply:
    """A player's move, with what the replay shows beside it.

    Attributes:
        content: text of the reply outside its calls, cut short; None where there was none.
        notes: texts of all slots after the move, working memory first; None if they did not change.
    """

    player: int
    action: int
    content: str | None = None
    notes: list[str] | None = None


@dataclass(slots=True)
class GameRecord:
    """One game as it was played.

    Attributes:
        first_seat: the seat (0 or 1) of the match's first player.
        history: OpenSpiel's action ids: opening, chance and moves.
        returns: of seat 0 and seat 1.
        result: for the match's first player.
        usage: of seat 0 and seat 1.
    """

    game: str
    seed: int
    first_seat: int
    history: list[int]
    returns: list[float]
    result: Result
    forfeit: Forfeit | None
    usage: tuple[Usage, Usage]
    plies: list[Ply] = field(default_factory=list)

    @property
    def forfeiter(self) -> int | None:
        """The forfeiting side: 0 for the match's first player, 1 for the second; None without."""
        return None if self.forfeit is None else self.forfeit.player ^ self.first_seat


def game_results(returns: Sequence[float]) -> list[Result]:
    """Both seats' results: a game's best return is as far above 0, a draw, as its worst below."""
    return ["draw" if value == 0 else "win" if value > 0 else "loss" for value in returns]


def forfeit_cause(reply: Reply) -> Cause:
    """Cause of a reply without a legal move."""
    if not reply.calls:
        return Cause.NO_CALL
    moves = [call for call in reply.calls if call.name == MOVE]
    if not moves:
        return Cause.NO_MOVE
    if any("action_id" in call.decoded() for call in moves):
        return Cause.ILLEGAL
    return Cause.BAD_ARGUMENTS


def opposite(result: Result) -> Result:
    """The other player's result."""
    results: dict[Result, Result] = {"win": "loss", "loss": "win", "draw": "draw"}
    return results[result]
