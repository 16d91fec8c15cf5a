"""Publishing: the output path after every success, every failure, and SIGKILL at any instant."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import miner
from miner.config.errors import ConfigurationError
from miner.publishing import filesystem
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model
from tests.publishing.killed_publisher import cannot_exchange, copy_of, open_publisher
from tests.publishing.locked import locked_elsewhere

SCORE = PublishedScore(step=40, score=0.9, episodes=250)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(params=["atomic", "fallback"])
def publisher(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Publisher:
    """On a file system that can swap folders, and on one that cannot."""
    if request.param == "fallback":
        monkeypatch.setattr(filesystem, "exchange_folders", cannot_exchange)
    return open_publisher(tmp_path / "task" / "repo")


@pytest.fixture
def output(publisher: Publisher) -> Path:
    return publisher.output_dir


class TestPublishing:
    """The way it goes when nothing fails, with both ways of replacing."""

    def test_base_then_trained(
        self, publisher: Publisher, output: Path, base_model: Path, trained_model: Path
    ) -> None:
        assert publisher.current() is None
        publisher.publish_base(base_model)
        assert publisher.current() == PublishedScore(step=0)
        assert weights(output) == weights(base_model)

        publisher.publish(copy_of(trained_model), SCORE)
        assert publisher.current() == open_publisher(output).current() == SCORE
        assert weights(output) == weights(trained_model)
        verify_model(output, load=True)

    def test_nothing_but_the_folder_is_left(
        self, publisher: Publisher, output: Path, base_model: Path
    ) -> None:
        for _ in range(3):
            publisher.publish(copy_of(base_model), SCORE)
        assert sorted(os.listdir(output.parent)) == [".repo.lock", "repo"]

    def test_record_names_no_path(
        self, publisher: Publisher, output: Path, base_model: Path
    ) -> None:
        publisher.publish(copy_of(base_model), SCORE)
        text = (output / "miner_publication.json").read_text()
        assert json.loads(text).keys() == {"step", "score", "episodes"}
        assert "/" not in text

    def test_empty_output_folder_is_used(self, tmp_path: Path, base_model: Path) -> None:
        (tmp_path / "repo").mkdir()
        open_publisher(tmp_path / "repo").publish_base(base_model)
        assert weights(tmp_path / "repo") == weights(base_model)

    def test_output_reached_over_a_link(self, tmp_path: Path, base_model: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        open_publisher(tmp_path / "link").publish_base(base_model)
        assert (tmp_path / "link").is_symlink()
        assert weights(tmp_path / "real") == weights(base_model)


class TestFailures:
    """Whatever fails, the model published before stays byte for byte, and no litter."""

    @pytest.fixture(autouse=True)
    def unchanged(self, publisher: Publisher, output: Path, base_model: Path) -> Iterator[None]:
        publisher.publish_base(base_model)
        before = content(output)
        yield
        assert content(output) == before
        assert sorted(os.listdir(output.parent)) == [".repo.lock", "repo"]

    def test_unverified_model(self, publisher: Publisher, trained_model: Path) -> None:
        def save(folder: Path) -> None:
            shutil.copytree(trained_model, folder, dirs_exist_ok=True)
            os.truncate(folder / "model.safetensors", 1000)

        with pytest.raises(UnverifiedModelError, match="is truncated, damaged"):
            publisher.publish(save, SCORE)

    def test_writer_without_space(self, publisher: Publisher) -> None:
        def save(folder: Path) -> None:
            (folder / "config.json").write_text("{}")
            raise OSError(28, "No space left on device")

        with pytest.raises(PublishingError, match=r"step 40 .*No space left.* MB are free"):
            publisher.publish(save, SCORE)

    @pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
    def test_an_error_of_the_caller_is_not_disguised(
        self, publisher: Publisher, kind: type[BaseException]
    ) -> None:
        def save(folder: Path) -> None:
            raise kind

        with pytest.raises(kind):
            publisher.publish(save, SCORE)

    def test_last_rename_fails(
        self,
        publisher: Publisher,
        output: Path,
        trained_model: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        rename = os.rename

        def failing(source: Path, target: Path) -> None:
            if "staging" in source.name:
                raise OSError(5, "Input/output error")
            rename(source, target)

        exchange = filesystem.exchange_folders

        def failing_exchange(first: Path, second: Path) -> None:
            if exchange is cannot_exchange:
                exchange(first, second)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(filesystem.os, "rename", failing)
        monkeypatch.setattr(filesystem, "exchange_folders", failing_exchange)
        with pytest.raises(PublishingError, match="Input/output error"):
            publisher.publish(copy_of(trained_model), SCORE)

    def test_another_process_publishes(self, publisher: Publisher, output: Path) -> None:
        with (
            locked_elsewhere(output.parent / ".repo.lock") as pid,
            pytest.raises(PublishingError, match=rf"another process \(pid {pid}\) is publishing"),
        ):
            publisher.publish(lambda folder: None, SCORE)


class TestStart:
    """Opening a publisher: repairs and refusals."""

    def test_a_lock_that_links_to_another_file_is_refused(
        self, tmp_path: Path, base_model: Path
    ) -> None:
        (tmp_path / "victim").write_text("precious")
        (tmp_path / ".repo.lock").symlink_to(tmp_path / "victim")
        with pytest.raises(PublishingError, match="repo"):
            open_publisher(tmp_path / "repo").publish_base(base_model)
        assert (tmp_path / "victim").read_text() == "precious"

    def test_removes_leftovers(self, tmp_path: Path, base_model: Path) -> None:
        open_publisher(tmp_path / "repo").publish_base(base_model)
        for name in (".repo.staging-1234", ".repo.previous"):
            shutil.copytree(base_model, tmp_path / name)
        other = Path(shutil.copytree(base_model, tmp_path / ".repository.staging-1"))
        open_publisher(tmp_path / "repo")
        assert weights(tmp_path / "repo") == weights(base_model)
        assert sorted(os.listdir(tmp_path)) == [".repo.lock", other.name, "repo"]

    def test_what_cannot_be_removed_is_named_and_does_not_block(
        self,
        tmp_path: Path,
        base_model: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        shutil.copytree(base_model, tmp_path / ".repo.staging-1234")

        def refused(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "unlink", refused)
        open_publisher(tmp_path / "repo").publish_base(base_model)
        assert "could not remove all of" in caplog.text
        assert weights(tmp_path / "repo") == weights(base_model)

    def test_restores_what_two_renames_left_behind(self, tmp_path: Path, base_model: Path) -> None:
        open_publisher(tmp_path / "repo").publish_base(base_model)
        (tmp_path / "repo").rename(tmp_path / ".repo.previous")
        assert open_publisher(tmp_path / "repo").current() == PublishedScore(step=0)
        assert sorted(os.listdir(tmp_path)) == [".repo.lock", "repo"]

    def test_refuses_what_was_not_published_and_keeps_it_where_it_takes_over(
        self, tmp_path: Path, base_model: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "repo").mkdir()
        (tmp_path / "repo" / "thesis.txt").write_text("three years of work")
        with pytest.raises(
            ConfigurationError, match=r"not published \(thesis.txt\): name a folder"
        ):
            open_publisher(tmp_path / "repo")
        assert sorted(os.listdir(tmp_path)) == ["repo"]

        publisher = Publisher(tmp_path / "repo", full_check=False, take_over=True)
        publisher.publish_base(base_model)
        (kept,) = tmp_path.glob(".repo.kept-*")
        assert (kept / "thesis.txt").read_text() == "three years of work"
        assert kept.name in caplog.text
        assert weights(tmp_path / "repo") == weights(base_model)

    def test_names_an_output_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(PublishingError, match="cannot prepare"):
            open_publisher(tmp_path / "file" / "repo")


SCRIPT = Path(__file__).with_name("killed_publisher.py")
ROOT = Path(miner.__file__).parent.parent


@pytest.mark.parametrize("mode", ["atomic", "fallback"])
def test_killed_at_every_file_operation(
    tmp_path: Path, base_model: Path, trained_model: Path, mode: str
) -> None:
    output = tmp_path / "out" / "model"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, (output, mode, base_model, trained_model))],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
    )
    seen = json.loads(done.stdout)
    assert len(seen) > 20
    assert all(instant["siblings"] == [".model.lock"] for instant in seen)

    reopened = [instant["reopened"] for instant in seen]
    assert reopened == sorted(reopened)
    assert set(reopened) == {0, 1}

    at_kill = [instant["at_kill"] for instant in seen]
    runs = [step for step, _ in itertools.groupby(at_kill)]
    if mode == "atomic":
        assert runs == [0, 1]
        assert at_kill == reopened
    else:  # the one window of the two renames, repaired by the next start
        assert runs == [0, None, 1]
        assert at_kill.count(None) == 1
