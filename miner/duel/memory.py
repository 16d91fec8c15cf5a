"""A player's notes: two areas of numbered slots, each of at most a budget of tokens.

Invariants:
* an edit never raises: a bad slot, tool or value is a sentence and changes nothing;
* rewriting keeps the front of what is too long, appending keeps the end;
* working memory lives for one game, long-term memory for all games against one opponent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

Keep = Literal["front", "end"]

SLOT_TOKENS = 128
WORKING_SLOTS = 4
LONG_TERM_SLOTS = 8
WORKING = "working_memory"
LONG_TERM = "long_term_memory"
REWRITE = "rewrite"
APPEND = "append"
EMPTY = "(empty)"


class TokenCounter(Protocol):
    """Measures notes, in the tokens of the model that is served."""

    def count(self, text: str) -> int:
        """Tokens in `text`."""
        ...

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        """At most `tokens` tokens of `text`, from its front or its end."""
        ...


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
    """Counts by a model's own tokenizer, without special tokens.

    Args:
        encode: ids of a text, no special tokens added.
        decode: text of ids, special tokens left out.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], decode: Callable[[list[int]], str]
    ) -> None:
        self._encode = encode
        self._decode = decode

    @classmethod
    def of(cls, tokenizer: Any) -> TokenizerCounter:
        """By a Hugging Face tokenizer."""
        return cls(
            lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        )

    def count(self, text: str) -> int:
        """Ids of `text`."""
        return len(self._encode(text)) if text else 0

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        """The text of the first or last ids."""
        ids = self._encode(text)
        return self._decode(ids[:tokens] if keep == "front" else ids[len(ids) - tokens :])


class Slots:
    """One area of notes; slots are numbered from 1."""

    __slots__ = ("_budget", "_counter", "texts", "title")

    def __init__(self, name: str, slots: int, counter: TokenCounter, budget: int) -> None:
        self.title = f"{name.upper()} (your notes):"
        self.texts = [""] * slots
        self._counter = counter
        self._budget = budget

    def clear(self) -> None:
        """Empty every slot."""
        self.texts = [""] * len(self.texts)

    def edit(self, operation: str, slot: int, content: str) -> str:
        """Rewrite or append to a slot. Returns: what became of it, in words."""
        if not 1 <= slot <= len(self.texts):
            return f"error: slot {slot} out of range (1-{len(self.texts)})"
        held = self.texts[slot - 1]
        whole = f"{held}\n{content}" if operation == APPEND and held else content
        kept = whole
        if self._counter.count(whole) > self._budget:
            kept = self._counter.cut(whole, self._budget, "end" if operation == APPEND else "front")
        self.texts[slot - 1] = kept
        done, lost = (
            ("appended", "oldest dropped")
            if operation == APPEND
            else ("rewritten", "truncated to budget")
        )
        cut = "" if kept == whole else f" ({lost})"
        return f"ok: slot {slot} {done}, {self._counter.count(kept)} tokens{cut}"

    def render(self) -> str:
        """The area as prompts show it."""
        lines = [f"  [{i}] {text or EMPTY}" for i, text in enumerate(self.texts, 1)]
        return "\n".join([self.title, *lines])


class Notes:
    """Everything one player has written down about one opponent in one game."""

    __slots__ = ("_areas", "_rendered", "long_term", "working")

    def __init__(
        self,
        counter: TokenCounter,
        *,
        working_slots: int = WORKING_SLOTS,
        long_term_slots: int = LONG_TERM_SLOTS,
        slot_tokens: int = SLOT_TOKENS,
    ) -> None:
        self.working = Slots(WORKING, working_slots, counter, slot_tokens)
        self.long_term = Slots(LONG_TERM, long_term_slots, counter, slot_tokens)
        self._areas = {WORKING: self.working, LONG_TERM: self.long_term}
        self._rendered: str | None = None

    def begin_game(self) -> None:
        """Forget the working memory."""
        self.working.clear()
        self._rendered = None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a memory tool. Returns: the outcome in words, an error included."""
        area, _, operation = tool.rpartition("_")
        if area not in self._areas or operation not in (REWRITE, APPEND):
            return f"error: unknown tool {tool!r}"
        slot = as_integer(arguments.get("slot"))
        if slot is None:
            return f"error: tool {tool} requires an integer 'slot'"
        content = arguments.get("content", "")
        self._rendered = None
        return self._areas[area].edit(
            operation, slot, content if isinstance(content, str) else str(content)
        )

    def render(self) -> str:
        """Both areas as prompts show them."""
        if self._rendered is None:
            self._rendered = "\n\n".join(area.render() for area in self._areas.values())
        return self._rendered


def as_integer(value: object) -> int | None:
    """An integer or a string of one; None for floats, booleans, null and all else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None
