"""Power cuts: what was reported as published or complete survives them."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import COMPLETE
from miner.distributed.ranks import Ranks
from miner.learning.checkpoints import Checkpoints, RunDisk
from miner.learning.schedule import Schedule
from miner.publishing import filesystem
from miner.publishing import publisher as publishing
from miner.publishing.filesystem import sync_folder
from miner.publishing.output_path import PUBLICATION_FILE
from miner.publishing.publisher import PublishedScore, Publisher
from tests.publishing.killed_publisher import cannot_exchange, copy_of, open_publisher

SCORE = PublishedScore(step=40, score=0.9, episodes=250)


class Disk:
    """Files and folders that were synced, with their content then."""

    def __init__(self) -> None:
        self.synced: dict[Path, bytes] = {}

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.synced[path] = b"" if path.is_dir() else path.read_bytes()

    def holds(self, folder: Path) -> bool:
        """True if all of `folder` is on disk as it is now."""
        paths = [folder, *folder.rglob("*")]
        return all(
            self.synced.get(path) == (b"" if path.is_dir() else path.read_bytes()) for path in paths
        )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.mark.parametrize("atomic", [True, False])
def test_a_model_is_on_disk_before_it_takes_its_place_and_its_name_after(
    atomic: bool,
    disk: Disk,
    tmp_path: Path,
    base_model: Path,
    trained_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not atomic:
        monkeypatch.setattr(filesystem, "exchange_folders", cannot_exchange)
    output = tmp_path / "task" / "repo"
    publisher = open_publisher(output)
    publisher.publish_base(base_model)
    replace, held = publishing.replace_folder, []

    def watched(new: Path, current: Path, *, aside: Path) -> None:
        held.append(disk.holds(new) and (new / PUBLICATION_FILE).exists())
        disk.synced.clear()
        replace(new, current, aside=aside)
        assert aside.exists() is not atomic

    monkeypatch.setattr(publishing, "replace_folder", watched)

    def save(folder: Path) -> None:
        copy_of(trained_model)(folder)
        (folder / "more").mkdir()
        (folder / "more" / "notes.txt").write_text("a file in a folder below")

    publisher.publish(save, SCORE)
    assert held == [True]
    assert output.parent in disk.synced  # both names lie there


@pytest.mark.parametrize(("code", "harmless"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_only_a_file_system_that_never_syncs_folders_is_let_off(
    code: int, harmless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with contextlib.nullcontext() if harmless else pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)


def test_a_published_model_can_be_read_by_another_user(tmp_path: Path, base_model: Path) -> None:
    before = os.umask(0o077)
    try:
        output = tmp_path / "repo"
        open_publisher(output).publish_base(base_model)
    finally:
        os.umask(before)
    assert output.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in output.iterdir()} == {0o644}


@pytest.mark.parametrize("strict", [True, False])
def test_a_model_is_loaded_before_it_takes_its_place(
    strict: bool, tmp_path: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the trainer's process; a base may lack what a trained model must have."""
    verify, asked = publishing.verify_model, []

    def watched(folder: Path, **how: Any) -> object:
        asked.append(how)
        return verify(folder, **how)

    monkeypatch.setattr(publishing, "verify_model", watched)
    publisher = Publisher(tmp_path / "repo", in_process=True)
    if strict:
        publisher.publish(copy_of(base_model), SCORE)
    else:
        publisher.publish_base(base_model)
    loaded = {"load": True, "strict": strict, "dtype": "float16"}  # as the first format serves it
    assert asked == [{"load": False, "strict": strict}, loaded]


def test_a_checkpoint_is_marked_complete_when_all_of_it_is_on_disk(
    disk: Disk, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "weights").write_text("large")
    disk_of_run = RunDisk(tmp_path, print)
    marker = Checkpoints(Schedule(10), Ranks(), HeartbeatWriter(tmp_path), disk_of_run, size=0)
    state = TrainerState(global_step=3)
    marker.on_save(TrainingArguments(str(tmp_path)), state, TrainerControl())
    assert json.loads(disk.synced[folder / COMPLETE])["step"] == 3
    assert disk.holds(folder)
    in_order = list(disk.synced)
    assert in_order.index(folder / "weights") < in_order.index(folder / COMPLETE)
