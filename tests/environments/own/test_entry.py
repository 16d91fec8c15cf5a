"""What may be named as one's own environment, and what is said of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.environments.own import TextEnvironment
from miner.environments.own.entry import load_entry

HEAD = "from miner.environments.own import Step, TextEnvironment\n"
WHOLE = """
class Fine(TextEnvironment):
    def reset(self, seed):
        return "hello"
    def step(self, reply):
        return Step(score=1.0)
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEAD + text)
    return str(path)


@pytest.mark.parametrize("name", ["", ":Fine"])
def test_a_class_in_a_file_is_found_and_may_use_its_neighbours(tmp_path: Path, name: str) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("WORD = 'there'")
    entry = written(tmp_path, "import neighbour_of_mine\n" + WHOLE)
    kind = load_entry(entry + name)
    assert issubclass(kind, TextEnvironment)
    assert kind is load_entry(entry + name)
    assert kind().reset(0) == "hello"


def test_a_class_in_a_module_is_found() -> None:
    assert load_entry("examples.guess:Guess").max_turns == 3


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("1 / 0\n", ":Fine", r"cannot be imported: ZeroDivisionError.*mine.py, line 2"),
        ("import not_there\n", ":Fine", "cannot be imported: ModuleNotFoundError.*not_there"),
        (WHOLE, ":Other", r"no 'Other' in .*environments in it: Fine"),
        (WHOLE, ":Step", r"write class Step\(TextEnvironment\)"),
        (WHOLE + WHOLE.replace("Fine", "Two"), "", "not one environment in it but Fine, Two"),
        (WHOLE.replace("reset", "begin"), "", "Fine has no reset: write def reset"),
        (WHOLE.replace("step", "go"), "", "Fine has no step: write def step"),
        (WHOLE + "    max_turns = 0\n", "", "max_turns is 0: an episode has one reply at least"),
        (WHOLE + "    problems = 1\n", "", "problems is 1: expected 2 or more"),
        (WHOLE + "    score_range = (1, 0)\n", "", r"score_range is \(1, 0\): expected"),
        (WHOLE + "    score_range = 1\n", "", "score_range is 1: expected"),
        (WHOLE + "    def __init__(self, size): pass\n", "", r"cannot be made: TypeError.*size"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_entry(written(tmp_path, text) + name)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("", "new-environment"),
        ("nowhere.py:X", "there is no file"),
        ("no_such_module:X", "ModuleNotFoundError"),
    ],
)
def test_what_is_not_there_is_a_sentence(entry: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_entry(entry)
