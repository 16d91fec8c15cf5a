"""A player's notes: two areas of numbered slots, each of at most a budget of tokens.

Invariants:
* an edit never raises: one with a bad slot, tool or value is refused and changes nothing;
* rewriting keeps the front of what is too long, appending keeps the end;
* working memory lives for one game, long-term memory for all games against one opponent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
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


class Edit(Enum):
    """What became of a memory call; no player is told."""

    REFUSED = "refused"
    STORED = "stored"
    CUT = "cut"
    """Stored, but for what exceeded the slot's budget."""


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

    Args:
        heading: what prompts show above the slots.
        slots: how many there are.
        budget: most tokens of a slot.

    Attributes:
        texts: of all slots in order; empty where nothing is written.
    """

    __slots__ = ("_budget", "_counter", "_heading", "texts")

    def __init__(self, heading: str, slots: int, counter: TokenCounter, budget: int) -> None:
        self._heading = heading
        self._counter = counter
        self._budget = budget
        self.texts = [""] * slots

    def clear(self) -> None:
        """Empty every slot."""
        self.texts = [""] * len(self.texts)

    def write(self, slot: int, content: str) -> Edit:
        """Put `content` in the place of what stands in a slot."""
        return self._store(slot, content, "front")

    def append(self, slot: int, content: str) -> Edit:
        """Put `content` on a new line below what stands in a slot."""
        before = self.texts[slot - 1] if self._has(slot) else ""
        return self._store(slot, f"{before}\n{content}" if before else content, "end")

    def render(self) -> str:
        """The area as prompts show it."""
        shown = (f"  [{number}] {text or EMPTY}" for number, text in enumerate(self.texts, 1))
        return "\n".join((self._heading, *shown))

    def _has(self, slot: int) -> bool:
        return 0 < slot <= len(self.texts)

    def _store(self, slot: int, text: str, keep: Keep) -> Edit:
        if not self._has(slot):
            return Edit.REFUSED
        fits = self._counter.count(text) <= self._budget
        self.texts[slot - 1] = text if fits else self._counter.cut(text, self._budget, keep)
        return Edit.STORED if fits else Edit.CUT


class Notes:
    """Everything one player has written down about one opponent in one game."""

    __slots__ = ("_rendered", "_tools", "long_term", "working")

    def __init__(
        self,
        counter: TokenCounter,
        *,
        working_slots: int = WORKING_SLOTS,
        long_term_slots: int = LONG_TERM_SLOTS,
        slot_tokens: int = SLOT_TOKENS,
    ) -> None:
        def area(name: str, slots: int) -> Area:
            return Area(f"{name.upper()} (your notes):", slots, counter, slot_tokens)

        self.working = area(WORKING, working_slots)
        self.long_term = area(LONG_TERM, long_term_slots)
        self._tools: dict[str, Callable[[int, str], Edit]] = {
            f"{WORKING}_{REWRITE}": self.working.write,
            f"{WORKING}_{APPEND}": self.working.append,
            f"{LONG_TERM}_{REWRITE}": self.long_term.write,
            f"{LONG_TERM}_{APPEND}": self.long_term.append,
        }
        self._rendered: str | None = None

    def begin_game(self) -> None:
        """Forget the working memory."""
        self.working.clear()
        self._rendered = None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Edit:
        """Carry out a call of a memory tool; content that is no text becomes one."""
        edit, slot = self._tools.get(tool), as_integer(arguments.get("slot"))
        if edit is None or slot is None:
            return Edit.REFUSED
        self._rendered = None
        return edit(slot, str(arguments.get("content", "")))

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
