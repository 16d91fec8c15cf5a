"""A player's notes: two areas of numbered slots, each of at most a budget of tokens.

Invariants:
* an edit never raises: one with a bad slot, tool or value is refused and changes nothing;
* rewriting keeps the front of what is too long, appending keeps the end;
* working memory lives for one game, long-term memory for all games against one opponent.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Protocol

from miner.config.contract import LONG_TERM, MEMORY_EDITS, WORKING
from miner.config.contract import MEMORY_SLOT_TOKENS as SLOT_TOKENS
from miner.config.contract import MEMORY_SLOTS as SLOTS

Keep = Literal["front", "end"]

REWRITE, APPEND = MEMORY_EDITS
MEMORY_TOOLS = {f"{area}_{edit}": (area, edit) for area in SLOTS for edit in (REWRITE, APPEND)}
"""Area and edit of each memory tool, in the order in which requests list them."""

EMPTY = "(empty)"


class TokenCounter(Protocol):
    """Measures notes, in the tokens of the model that is served."""

    def count(self, text: str) -> int:
        """Tokens in `text`."""

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        """At most `tokens` tokens of `text`, from its front or its end."""


class WordCounter:
    """Counts words, as the tournament does where no tokenizer can be loaded."""

    def count(self, text: str) -> int:
        """Words between white space."""
        return len(text.split())

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        """The first or last words, joined by single spaces."""
        words = text.split()
        return " ".join(words[:tokens] if keep == "front" else words[len(words) - tokens :])


class TokenizerCounter:
    """Counts by a model's own Hugging Face tokenizer, without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Ids of `text`."""
        return len(self._ids(text)) if text else 0

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        """The text of the first or last ids."""
        ids = self._ids(text)
        kept = ids[:tokens] if keep == "front" else ids[len(ids) - tokens :]
        return str(self._tokenizer.decode(kept, skip_special_tokens=True))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


class Area:
    """Numbered slots of text, the first being 1.

    Attributes:
        texts: of all slots in order; empty where nothing is written.
    """

    __slots__ = ("_counter", "_name", "texts")

    def __init__(self, name: str, counter: TokenCounter) -> None:
        self._name = name
        self._counter = counter
        self.clear()

    def clear(self) -> None:
        """Empty every slot."""
        self.texts = [""] * SLOTS[self._name]

    def edit(self, edit: str, slot: int, content: str) -> None:
        """Replace a slot's text by `content`, or append it on a new line."""
        if not 0 < slot <= len(self.texts):
            return
        before = self.texts[slot - 1]
        text = f"{before}\n{content}" if edit == APPEND and before else content
        if self._counter.count(text) > SLOT_TOKENS:
            text = self._counter.cut(text, SLOT_TOKENS, "end" if edit == APPEND else "front")
        self.texts[slot - 1] = text

    def render(self) -> str:
        """The area as prompts show it."""
        shown = (f"  [{number}] {text or EMPTY}" for number, text in enumerate(self.texts, 1))
        return "\n".join((f"{self._name.upper()} (your notes):", *shown))


class Notes:
    """Everything one player has written down about one opponent in one game."""

    __slots__ = ("_edits", "_rendered", "long_term", "working")

    def __init__(self, counter: TokenCounter) -> None:
        self.working, self.long_term = Area(WORKING, counter), Area(LONG_TERM, counter)
        areas = {WORKING: self.working, LONG_TERM: self.long_term}
        self._edits = {
            tool: partial(areas[area].edit, edit) for tool, (area, edit) in MEMORY_TOOLS.items()
        }
        self._rendered: str | None = None

    def begin_game(self) -> None:
        """Forget the working memory."""
        self.working.clear()
        self._rendered = None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Carry out a call of a memory tool; content that is not text becomes one."""
        edit, slot = self._edits.get(tool), as_integer(arguments.get("slot"))
        if edit is not None and slot is not None:
            edit(slot, str(arguments.get("content", "")))
            self._rendered = None

    def render(self) -> str:
        """Both areas as prompts show them; kept until the next edit, as most turns have none."""
        if self._rendered is None:
            self._rendered = f"{self.working.render()}\n\n{self.long_term.render()}"
        return self._rendered


def as_integer(value: object) -> int | None:
    """An integer or a string of one; None for floats, booleans, null and all else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None
