"""Two submissions are compared as the tournament compares them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import miner, refusal

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
def clones(tmp_path: Path) -> Callable[..., list[str]]:
    """Write both submissions; returns the command's words."""

    def write(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
        for name, files in (("own", ours), ("other", theirs)):
            for file, text in files.items():
                (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / file).write_text(text)
        return ["distinct", str(tmp_path / "other"), "--own", str(tmp_path / "own")]

    return write


def test_other_spaces_and_comments_are_equal(clones: Callable[..., list[str]]) -> None:
    theirs = "# mine\n" + CODE.replace("    total", "    total ").replace("\n\n", "\n\n\n")
    output = miner(*clones({"a.py": CODE}, {"a.py": theirs}), status=1)
    assert "the same text after normalising" in output


@pytest.mark.parametrize(
    "theirs",
    [{"a.py": RENAMED}, {"b.py": CODE}, {"a.py": RENAMED, "notes.txt": "all new"}],
    ids=["renamed", "moved", "a file beside it"],
)
def test_names_numbers_and_places_are_no_difference(
    clones: Callable[..., list[str]], theirs: dict[str, str]
) -> None:
    output = miner(*clones({"a.py": CODE}, theirs), status=1)
    assert "only here: 0 of 3" in output
    assert "not distinct" in output


def test_a_changed_mechanism_is_named_on_both_sides(clones: Callable[..., list[str]]) -> None:
    theirs = RENAMED.replace("summed += math.sqrt(reward)", "summed = max(summed, reward)")
    output = miner(*clones({"a.py": CODE}, {"a.py": theirs + "\n\ndef more():\n    return {}\n"}))
    lines = [line.strip() for line in output.splitlines()]
    assert lines == [
        "only here: 1 of 3 functions and classes",
        "a.py: credit",
        "only there: 2 of 4 functions and classes",
        "a.py: worth",
        "a.py: more",
    ]


def test_this_repository_equals_itself() -> None:
    root = str(Path(__file__).parents[2])
    assert miner("distinct", root, "--own", root, status=1).startswith("equal: both are commit")


@pytest.mark.parametrize(
    ("text", "words"), [("def (", "a.py is not Python"), (None, "holds no Python files")]
)
def test_what_cannot_be_compared_is_named(
    clones: Callable[..., list[str]], text: str | None, words: str
) -> None:
    theirs = {"a.py": text} if text else {"a.txt": "x"}
    assert words in refusal(*clones({"a.py": CODE}, theirs))


def test_a_missing_git_is_named(
    clones: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"a.py": CODE, ".git/HEAD": "ref: refs/heads/main\n"}
    words = clones(files, files)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(*words) == "git is not installed: install it"
