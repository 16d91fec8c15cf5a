"""The protocol of duels' players, and the ways in which a reply can fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from miner.duel.memory import TokenCounter
from miner.duel.tools import ToolCall
from miner.duel.turn import Request


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: the tool calls that the serving engine found in it, and the rest of its text.

    Attributes:
        prompt_tokens, tokens: length of prompt and reply, 0 where nothing was tokenised.
    """

    calls: Sequence[ToolCall] = ()
    content: str | None = None
    prompt_tokens: int = 0
    tokens: int = 0


class Player(Protocol):
    """Answers requests of many games at once; each request carries its game and notes.

    Attributes:
        name: label of its results.
        counter: counts tokens of this player's notes.
    """

    name: str
    counter: TokenCounter

    async def reply(self, request: Request) -> Reply:
        """Answer a request.

        Raises: `ReplyForfeit` for what loses the game by the tournament's rules,
            `UnreachableError` for a server that is away, `ConfigurationError` for what the user
            has to change, which ends the command; anything else ends the match.
        """

    async def close(self) -> None:
        """Release what the player holds (idempotent)."""


class ReplyForfeit(Exception):
    """No reply came, by the player's fault: the game is lost.

    Attributes:
        cause: one of `outcome.Cause`'s values.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class UnreachableError(Exception):
    """The player's server cannot be reached: the game is played again."""


class PlayerError(Exception):
    """The player, or its server, fails for good: the match ends without a decision."""
