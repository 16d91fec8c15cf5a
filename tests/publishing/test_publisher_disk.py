"""Publishing on real file systems: swapping folders, full, read-only and mounted disks."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from miner.publishing.errors import PublishingError
from miner.publishing.filesystem import exchange_folders, replace_folder
from miner.publishing.publisher import PublishedScore
from miner.publishing.verify import verify_model
from tests.publishing.killed_publisher import copy_of, open_publisher

SCORE = PublishedScore(step=40)


def test_exchange_swaps_two_folders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    try:
        exchange_folders(tmp_path / "a", tmp_path / "b")
    except OSError as error:
        pytest.skip(f"this file system cannot: {error}")
    assert (tmp_path / "a" / "name").read_text() == "b"
    assert (tmp_path / "b" / "name").read_text() == "a"


def test_a_library_without_the_call_renames_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    for name in ("new", "current"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    replace_folder(tmp_path / "new", tmp_path / "current", aside=tmp_path / "aside")
    assert (tmp_path / "current" / "name").read_text() == "new"
    assert (tmp_path / "aside" / "name").read_text() == "current"


class TestSmallDisk:
    """The real errors of a full and of a read-only file system."""

    def test_full_while_safetensors_writes(self, small_disk: Path, base_model: Path) -> None:
        publisher = open_publisher(small_disk / "repo")
        publisher.publish_base(base_model)

        def save(folder: Path) -> None:
            save_file({"t": torch.zeros(1_000_000)}, folder / "model.safetensors")

        with pytest.raises(PublishingError, match="No space left"):
            publisher.publish(save, SCORE)
        verify_model(small_disk / "repo", load=True)

    def test_base_model_too_large(self, small_disk: Path, model: Path) -> None:
        weights = load_file(model / "model.safetensors")
        weights["more"] = torch.zeros(25_000)
        save_file(weights, model / "model.safetensors")
        with pytest.raises(PublishingError, match=r"need 0\.1 MB, but only 0\.1 MB are free"):
            open_publisher(small_disk / "repo").publish_base(model)

    def test_read_only(self, small_disk: Path, base_model: Path) -> None:
        publisher = open_publisher(small_disk / "repo")
        publisher.publish_base(base_model)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(PublishingError, match="Read-only file system"):
            publisher.publish(copy_of(base_model), SCORE)
        with pytest.raises(PublishingError, match="Read-only file system"):
            open_publisher(small_disk / "repo")
        verify_model(small_disk / "repo", load=True)

    def test_output_is_a_mount_point(self, small_disk: Path) -> None:
        with pytest.raises(PublishingError, match="mount its parent"):
            open_publisher(small_disk)
