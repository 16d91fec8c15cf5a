"""Models that are made at first use, once."""

from pathlib import Path

import pytest

from miner.config.out_folder import made_once


def _make(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def test_the_first_of_several_makers_has_made_it(tmp_path: Path) -> None:
    model, made = tmp_path / "cache" / "model", []

    def make(folder: Path) -> None:
        _make(folder)
        made.append(folder)
        if len(made) == 1:  # another process, meanwhile
            made_once(model, make)

    for _ in range(2):
        assert made_once(model, make) == model
    assert len(made) == 2
    assert [each.name for each in model.parent.iterdir()] == ["model"]


def test_what_lies_there_and_is_no_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match=r"not empty|exists"):
        made_once(tmp_path, _make)
    assert (tmp_path / "notes.txt").read_text() == "mine"
