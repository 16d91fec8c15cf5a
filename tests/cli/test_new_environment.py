"""`python -m miner new-environment` and `probe` of it: from nothing to what can be trained on."""

import contextlib
import json
import re
from pathlib import Path

import pytest

from miner.config.statuses import TrainerStatus
from tests.commands import miner, refusal, status_of

OWN = ("environment.channel=own",)


def test_what_is_written_can_be_trained_on_and_is_no_longer_than_promised(tmp_path: Path) -> None:
    written = miner("new-environment", "Riddle", "--in", str(tmp_path))
    path = tmp_path / "riddle.py"
    assert f"probe environment.channel=own environment.entry={path}" in written
    assert len(path.read_text().splitlines()) <= 33
    findings = tmp_path / "findings.json"
    looked = miner("probe", *OWN, f"environment.entry={path}:Riddle", "--json", str(findings))
    assert "Riddle: 96 episodes" in looked
    assert "What is" in looked
    found = json.loads(findings.read_text())
    assert (found["channel"], found["notes"]) == ("own", [])
    assert "What is" in found["picture"]


def test_nothing_is_overwritten_and_a_name_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "riddle.py").write_text("mine")
    for words, message in (
        (("Riddle", "--in", str(tmp_path)), "is there already"),
        (("my-game",), "not a name of a class"),
        (("Random",), "would hide"),
        (("Step",), "would hide"),
        (("Riddle", "--in", str(tmp_path / "none")), "there is no folder"),
    ):
        assert message in refusal("new-environment", *words)
    assert (tmp_path / "riddle.py").read_text() == "mine"


@pytest.mark.parametrize("entry", ["examples/guess.py", "examples.guess:Guess"])
def test_the_example_is_sound(entry: str) -> None:
    looked = miner("probe", *OWN, f"environment.entry={entry}")
    assert "Guess: 96 episodes" in looked


def test_a_mistake_of_the_user_is_a_sentence(tmp_path: Path) -> None:
    sentence = refusal("probe", *OWN, f"environment.entry={tmp_path / 'guess.py'}")
    assert "there is no file" in sentence


def test_the_readme_shows_the_example_as_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    example = (root / "examples" / "guess.py").read_text()
    shown = example[example.index("import random") :]
    assert f"```python\n{shown}```" in (root / "README.md").read_text()
    assert len(shown.splitlines()) <= 30


def test_a_disk_that_is_full_is_one_sentence_and_nothing_is_left(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (small_disk / "all").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert status_of("new-environment", "Riddle", "--in", small_disk) == TrainerStatus.DISK
    (sentence,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: .*No space left on device \(run_files.py, line \d+\): free", sentence)
    assert [path.name for path in small_disk.iterdir()] == ["all"]
