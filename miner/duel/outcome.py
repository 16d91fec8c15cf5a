"""What became of a game: its result, whose forfeit it was and why, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from miner.duel.games import LoadedDuelGame
from miner.duel.players.base import Reply
from miner.duel.tools import MOVE
from miner.duel.turn import Result

Notes = list[str]
"""Texts of all slots, working memory first."""

POINTS: dict[Result, float] = {"win": 1.0, "draw": 0.5, "loss": 0.0}
"""What a game is worth in a score."""


class Cause(StrEnum):
    """Why a player forfeited."""

    NO_CALL = "no tool call"
    NO_MOVE = "no game_action"
    BAD_ARGUMENTS = "unreadable arguments"
    ILLEGAL = "illegal action"
    SLOW = "turn time-out"
    HTTP_SLOW = "HTTP time-out"
    CONTEXT = "context overflow"


@dataclass(frozen=True, slots=True)
class Forfeit:
    """Who gave a game away, and why."""

    player: int
    cause: Cause


@dataclass(slots=True)
class Usage:
    """What one player's requests of a game came to; reflections are counted apart."""

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
        notes: the player's notes after the move; None if they did not change.
    """

    player: int
    action: int
    content: str | None = None
    notes: Notes | None = None


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
    def first_forfeits(self) -> bool:
        """Whether the match's first player forfeited."""
        return self.forfeit is not None and self.forfeit.player == self.first_seat

    @property
    def second_forfeits(self) -> bool:
        """Whether the match's second player forfeited."""
        return self.forfeit is not None and self.forfeit.player != self.first_seat


def result_of(
    returns: Sequence[float], player: int, *, zero_sum: bool, lowest: float, highest: float
) -> Result:
    """A player's result: in zero-sum games against the middle of all returns, else against the
    best other player's."""
    others = [value for seat, value in enumerate(returns) if seat != player]
    level = (lowest + highest) / 2 if zero_sum else max(others)
    if returns[player] == level:
        return "draw"
    return "win" if returns[player] > level else "loss"


def game_results(loaded: LoadedDuelGame, returns: Sequence[float]) -> list[Result]:
    """Both seats' results of a game with these returns."""
    return [
        result_of(
            returns,
            seat,
            zero_sum=loaded.zero_sum,
            lowest=loaded.lowest_return,
            highest=loaded.highest_return,
        )
        for seat in (0, 1)
    ]


def forfeit_cause(reply: Reply) -> Cause:
    """Why a reply holds no legal move."""
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
