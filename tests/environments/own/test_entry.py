"""Entries that name a custom environment, and the errors of all others."""

import re
from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.environments.own import TextEnvironment
from miner.environments.own.check import check_environment
from miner.environments.own.entry import load_entry
from miner.environments.own.source import OwnSource
from miner.environments.seeded_tasks import SeededTasks

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


async def test_rewards_are_weighted_a_tool_answers_and_two_environments_share_a_run() -> None:
    both = load_entry(str(Path(__file__).parents[3] / "examples" / "several.py") + ":Both")
    findings = await check_environment(both, OwnSource(both), SeededTasks("Both", None))
    assert findings.notes == ()
    assert "One episode in full" in str(findings.picture)
    episode = both()
    first = episode.reset(3)
    terms = [int(word) for word in re.findall(r"\d\d", first)[:2]]
    called = episode.step(f"<calc>{terms[0]}+{terms[1]}</calc>")
    assert called.text == f"<result>{sum(terms)}</result>"
    assert episode.step(str(sum(terms))).score == 1.0
    assert episode.step(f"it might be {sum(terms)}").score == 0.8
    assert episode.step("0").score == 0.2
    assert [both().reset(seed) == "guess" for seed in range(3)] == [False, False, True]


def test_a_class_in_a_module_is_found() -> None:
    assert load_entry("examples.guess:Guess").max_turns == 3


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("1 / 0\n", ":Fine", r"cannot be imported: ZeroDivisionError.*mine.py, line 2"),
        ("import not_there\n", ":Fine", "cannot be imported: ModuleNotFoundError.*not_there"),
        (WHOLE, ":Other", r"no 'Other' in .*TextEnvironment in it: Fine"),
        (WHOLE, ":Step", r"write class Step\(TextEnvironment\)"),
        (WHOLE + WHOLE.replace("Fine", "Two"), "", "not one TextEnvironment in it but Fine, Two"),
        (WHOLE.replace("reset", "begin"), "", "Fine has no reset: write def reset"),
        (WHOLE.replace("step", "go"), "", "Fine has no step: write def step"),
        (WHOLE + "    max_turns = 0\n", "", "max_turns is 0: an episode has one reply at least"),
        (WHOLE + "    problems = 1\n", "", "problems is 1: expected 2 or more"),
        (WHOLE + "    score_range = (1, 0)\n", "", r"score_range is \(1, 0\): expected"),
        (WHOLE + "    score_range = 1\n", "", "score_range is 1: expected"),
        (WHOLE + "    stop = '</a>'\n", "", r"stop is '</a>': expected a tuple of texts"),
        (WHOLE + "    stop = None\n", "", r"stop is None: expected a tuple of texts"),
        (WHOLE + "    system = 5\n", "", "system is 5: expected a text"),
        (WHOLE + "    replies = (1, 2)\n", "", r"replies is \(1, 2\): expected a tuple of texts"),
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


def test_a_file_that_exits_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be imported: SystemExit"):
        load_entry(written(tmp_path, "import sys\nsys.exit(0)\n"))
