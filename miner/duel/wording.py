"""The words around a turn: our own, or the tournament's from a copy that the user provides.

Invariants:
* layouts (order of parts, labels, tool names, schemas) are the tournament's in both cases and live
  in `turn` and `tools`; only sentences differ;
* the tournament's sentences are never part of this repository's own files: they are read from the
  user's copy (`tournament_files`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from miner.duel.memory import APPEND, LONG_TERM, MEMORY_TOOLS, REWRITE, SLOTS, WORKING
from miner.games import GAMES

OWN = "own words"


@dataclass(frozen=True, slots=True)
class ToolWording:
    """Descriptions in tool schemas.

    Attributes:
        memory: descriptions of `MEMORY_TOOLS`, in their order.
        slot, content, action_id: descriptions of arguments.
        move: text before and after the legal ids in the description of the move's tool.
    """

    memory: tuple[str, ...]
    slot: str
    content: str
    action_id: str
    move: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Wording:
    """All sentences of a request.

    Attributes:
        source: `OWN`, or where the tournament's sentences were read from.
        heads: each game's beginning of the system message, up to the notes.
        turn_tail, reflection_tail: the system message's end, after the notes.
        reflection: the user message of a reflection around its result and its state.
        tools: descriptions of the tools.
    """

    source: str
    heads: Mapping[str, str]
    turn_tail: str
    reflection_tail: str
    reflection: tuple[str, str, str]
    tools: ToolWording

    @property
    def described(self) -> str:
        """Origin of the sentences, for a line about what is played."""
        return "our own words" if self.is_own else f"the tournament's words ({self.source})"

    @property
    def is_own(self) -> bool:
        """The sentences are ours, not the tournament's."""
        return self.source == OWN


@cache
def own_wording() -> Wording:
    """Our own sentences, used without a copy of the tournament's."""
    return Wording(
        source=OWN,
        heads={name: f"This is a game of {name}.\n\n{game.rules}" for name, game in GAMES.items()},
        turn_tail=(
            "Answer once. You may change your notes with the memory tools; then choose your move "
            "with game_action and one of the legal ids. An answer without it loses the game."
        ),
        reflection_tail=(
            "This game has ended and asks for no move. With the memory tools, write down what will "
            "help against the same opponent: how they play, and what works against it."
        ),
        reflection=(
            "This game has ended. Your result: ",
            ".\n\nFinal state:\n",
            "\n\nWrite down what is worth knowing about this opponent.",
        ),
        tools=ToolWording(
            memory=tuple(
                f"{_EDITS[edit]} one of slots 1-{SLOTS[area]} of {_AREAS[area]}."
                for area, edit in MEMORY_TOOLS.values()
            ),
            slot="Number of the slot.",
            content="What to write.",
            action_id="Id of a legal action.",
            move=("Make your move; the turn ends. Legal ids: ", "."),
        ),
    )


_EDITS = {
    REWRITE: "Replaces all that stands in",
    APPEND: "Adds a line (the oldest words go when it is full) to",
}
_AREAS = {WORKING: "the notes on this game", LONG_TERM: "the lasting notes on this opponent"}
