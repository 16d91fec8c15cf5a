"""Requests to players, put into words lazily, and the effect of their replies.

Invariants:
* a request is a fresh chat of two messages; what a player remembers is in the notes it shows;
* nothing is rendered before someone reads it: players that look at the game itself cost no words;
* all memory calls of a reply are carried out, and the first legal move counts, in any order.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from miner.config.contract import DUEL_REPLY_TOKENS, REFLECTION_TOKENS
from miner.duel.memory import Notes
from miner.duel.table import Table
from miner.duel.tools import MOVE, Schema, ToolCall, move_of, reflection_tools, turn_tools
from miner.duel.wording import Wording
from miner.environments.base import Message

Kind = Literal["turn", "reflection"]
Result = Literal["win", "loss", "draw"]

MAX_TOKENS: dict[Kind, int] = {"turn": DUEL_REPLY_TOKENS, "reflection": REFLECTION_TOKENS}
"""Longest reply, in tokens."""

TEMPERATURE = 0.0


class Request:
    """One call of a player's model.

    Attributes:
        table: the game as it is; our own players may read it, models see `messages`.
        player: the seat that is asked, 0 or 1.
        notes: the player's notes.
        kind: a turn, or the reflection after a game.
        legal: ids of the legal actions, ascending; empty in a reflection.
        seed: the evaluation's seed, which requests carry.
    """

    def __init__(
        self,
        table: Table,
        player: int,
        notes: Notes,
        wording: Wording,
        *,
        legal: Sequence[int] = (),
        result: Result | None = None,
        seed: int | None = None,
    ) -> None:
        self.table = table
        self.player = player
        self.notes = notes
        self.legal = legal
        self.result = result
        self.kind: Kind = "turn" if result is None else "reflection"
        self.seed = seed
        self._wording = wording

    @property
    def max_tokens(self) -> int:
        """Longest reply, in tokens."""
        return MAX_TOKENS[self.kind]

    @cached_property
    def system(self) -> str:
        """The system message: rules, notes, what to do."""
        words = self._wording
        tail = words.turn_tail if self.kind == "turn" else words.reflection_tail
        return "\n\n".join([words.heads[self.table.game.name], self.notes.render(), tail])

    @cached_property
    def user(self) -> str:
        """The user message: the state, and the legal actions or the result."""
        state = self.table.text(self.player)
        if self.result is not None:
            before, between, after = self._wording.reflection
            return f"{before}{self.result.upper()}{between}{state}{after}"
        actions = "\n".join(f"{a} -> {self.table.label(self.player, a)}" for a in self.legal)
        return (
            f"Current state:\n{state}\n\nYou are Player {self.player}.\nLegal actions:\n{actions}"
        )

    @cached_property
    def tools(self) -> list[Schema]:
        """Schemas of the tools on offer."""
        if self.kind == "turn":
            return turn_tools(self._wording, self.legal)
        return reflection_tools(self._wording)

    @property
    def messages(self) -> list[Message]:
        """The chat."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": self.user},
        ]

    def body(self, model: str) -> dict[str, Any]:
        """The request to an OpenAI-compatible endpoint, keys in the tournament's order."""
        return {
            "model": model,
            "messages": self.messages,
            "temperature": TEMPERATURE,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "tools": self.tools,
            "tool_choice": "auto",
        }


def next_request(
    table: Table, notes: Sequence[Notes], wording: Wording, seed: int | None = None
) -> Request | None:
    """The request of the seat to move; None where the game is over or it has no legal action."""
    state = table.state
    if state.is_terminal() or not (legal := state.legal_actions()):
        return None
    seat = state.current_player()
    return Request(table, seat, notes[seat], wording, legal=legal, seed=seed)


def legal_move(request: Request, calls: Sequence[ToolCall]) -> int | None:
    """The first legal move among a reply's calls; None without one, as in a reflection."""
    moves = (move_of(call.decoded(), request.legal) for call in calls if call.name == MOVE)
    return next((move for move in moves if move is not None), None)


def carry_out(request: Request, calls: Sequence[ToolCall]) -> int | None:
    """Carry out a reply's calls on the player's notes. Returns: `legal_move` of them."""
    for call in calls:
        if call.name != MOVE:
            request.notes.call(call.name, call.decoded())
    return legal_move(request, calls)
