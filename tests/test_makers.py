"""Programs that make models replace none of somebody else's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    "program", ["miner.tiny_model --out", "miner.duel.tiny_base", "miner.real_model --out"]
)
def test_a_folder_that_holds_something_is_refused_at_once(program: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", *program.split(), str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path} is not empty: name another folder, or remove it\n"
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("words", [("FORMAT=duels",), ("FORMAT=duel", "MODEL=smollm2")])
def test_a_demo_that_there_is_not_is_no_other_one(words: tuple[str, ...]) -> None:
    make = ["make", "--dry-run", "demo", *words]
    done = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "FORMAT may be duel" in done.stderr
