"""`python -m miner agent`, as a person types it."""

from pathlib import Path

import pytest

from miner.cli.agent import without_controls
from tests.commands import miner, refusal


def test_each_prompt_is_answered(model: Path) -> None:
    asked = ["--prompt", "6 times 7 ?", "--prompt", "6 plus 7 ?", "--max-tokens", "8"]
    said = miner("agent", "--model", model, *asked)
    assert "> 6 times 7 ?\n" in said
    assert "> 6 plus 7 ?\n" in said


def test_what_programs_print_does_not_control_the_terminal() -> None:
    assert without_controls("a\tb\n\x1b]0;x\x07\x9b2J\x7f") == "a\tb\n\\x1b]0;x\\x07\\x9b2J\\x7f"


def test_without_a_key_e2b_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    given = ("--model", model, "--prompt", "6 times 7 ?", "--executor", "e2b")
    assert "set E2B_API_KEY" in refusal("agent", *given)
