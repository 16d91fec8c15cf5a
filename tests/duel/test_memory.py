"""Notes: every recorded edit, and counting by a tokenizer."""

from __future__ import annotations

import pytest

from miner.duel import memory
from miner.duel.memory import Keep, Notes, TokenizerCounter, WordCounter
from tests.builders import build_tokenizer
from tests.duel.golden import Line, golden


class _ByteCounter:
    def count(self, text: str) -> int:
        return len(text.encode())

    def cut(self, text: str, tokens: int, keep: Keep) -> str:
        raw = text.encode()
        return (raw[:tokens] if keep == "front" else raw[len(raw) - tokens :]).decode()


@pytest.mark.parametrize("line", golden("memory"), ids=lambda line: line["scenario"])
def test_edits_keep_what_the_tournaments_do(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_TOKENS", line["slot_token_budget"])
    assert line["slots"] == list(memory.SLOTS.values())
    notes = Notes({"whitespace": WordCounter(), "byte": _ByteCounter()}[line["counter"]])
    for edit in line["ops"]:
        before = notes.render()
        notes.call(edit["tool"], edit["arguments"])
        assert edit["result"] != "refused" or notes.render() == before
    assert notes.working.texts == list(line["final"]["working_memory"].values())
    assert notes.long_term.texts == list(line["final"]["long_term_memory"].values())
    assert notes.render() == "\n\n".join(line["rendered"].values())


def test_a_tokenizer_counts_what_the_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_TOKENS", 5)
    counter = TokenizerCounter(build_tokenizer())
    notes = Notes(counter)
    text = "bids high early, then low"
    assert counter.count(text) > 5  # most letters are tokens of their own
    notes.call("working_memory_rewrite", {"slot": 1, "content": text})
    kept = notes.working.texts[0]
    assert kept == counter.cut(text, 5, "front")
    assert text.startswith(kept)
    assert counter.count(kept) == 5
    notes.call("working_memory_append", {"slot": 1, "content": "!?"})
    assert notes.working.texts[0] == counter.cut(f"{kept}\n!?", 5, "end")
    assert notes.working.texts[0].endswith("\n!?")


def test_a_new_game_forgets_the_working_memory_alone() -> None:
    notes = Notes(WordCounter())
    for tool in ("working_memory_rewrite", "long_term_memory_rewrite"):
        notes.call(tool, {"slot": 1, "content": "kept?"})
    notes.begin_game()
    assert notes.working.texts[0] == ""
    assert notes.long_term.texts[0] == "kept?"
    assert "[1] (empty)" in notes.render()
