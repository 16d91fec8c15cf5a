"""Two submissions are compared as the tournament compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from miner.__main__ import app
from miner.config.errors import ConfigurationError

CODE = '''
"""A miner."""
import math

RATE = 0.5


def credit(rewards: list[float]) -> float:
    """What a turn earned."""
    total = 0.0
    for reward in rewards:
        if reward > RATE:
            total += math.sqrt(reward)
    return total


class Miner:
    rate = 1.0

    def run(self) -> float:
        return credit([self.rate])
'''
RENAMED = CODE.replace("credit", "worth").replace("total", "summed").replace("0.5", "0.25")


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Result]:
    def compare(ours: dict[str, str], theirs: dict[str, str]) -> Result:
        for name, files in (("own", ours), ("other", theirs)):
            for file, text in files.items():
                (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / file).write_text(text)
        words = ["distinct", str(tmp_path / "other"), "--own", str(tmp_path / "own")]
        return CliRunner().invoke(app, words)

    return compare


def test_other_spaces_and_comments_are_equal(compared: Callable[..., Result]) -> None:
    theirs = "# mine\n" + CODE.replace("    total", "    total ").replace("\n\n", "\n\n\n")
    result = compared({"a.py": CODE}, {"a.py": theirs})
    assert result.exit_code == 1
    assert "the same text after normalising" in result.output


@pytest.mark.parametrize(
    "theirs",
    [{"a.py": RENAMED}, {"b.py": CODE}, {"a.py": RENAMED, "notes.txt": "all new"}],
    ids=["renamed", "moved", "a file beside it"],
)
def test_names_numbers_and_places_are_no_difference(
    compared: Callable[..., Result], theirs: dict[str, str]
) -> None:
    result = compared({"a.py": CODE}, theirs)
    assert result.exit_code == 1
    assert "only here: 0 of 3" in result.output
    assert "not distinct" in result.output


def test_a_changed_mechanism_is_named_on_both_sides(compared: Callable[..., Result]) -> None:
    theirs = RENAMED.replace("summed += math.sqrt(reward)", "summed = max(summed, reward)")
    result = compared({"a.py": CODE}, {"a.py": theirs + "\n\ndef more():\n    return {}\n"})
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines == [
        "only here: 1 of 3 functions and classes",
        "a.py: credit",
        "only there: 2 of 4 functions and classes",
        "a.py: worth",
        "a.py: more",
    ]


def test_this_repository_equals_itself() -> None:
    root = str(Path(__file__).parents[2])
    result = CliRunner().invoke(app, ["distinct", root, "--own", root])
    assert (result.exit_code, result.output[:20]) == (1, "equal: both are comm")


@pytest.mark.parametrize(
    ("text", "words"), [("def (", "a.py is not Python"), (None, "holds no Python files")]
)
def test_what_cannot_be_compared_is_named(
    compared: Callable[..., Result], text: str | None, words: str
) -> None:
    result = compared({"a.py": CODE}, {"a.py": text} if text else {"a.txt": "x"})
    assert isinstance(result.exception, ConfigurationError)
    assert words in str(result.exception)
