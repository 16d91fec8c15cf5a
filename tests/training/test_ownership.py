"""Two runs in one folder, and starts that are refused."""

import pytest
import typer

from miner.cli.demo import only_demo
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.training.ownership import owned, undone_if_refused
from tests.publishing.locked import locked_elsewhere
from tests.training.commands import places


@pytest.fixture
def settings(tmp_path):
    return Settings.load(None, places(tmp_path, tmp_path / "base"), environ={})


@pytest.mark.parametrize("name", ["run_dir", "output.dir"])
def test_a_folder_of_another_process_is_refused_until_that_is_killed(settings, tmp_path, name):
    folder = settings.run_dir if name == "run_dir" else settings.output.dir
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked_elsewhere(folder.parent / f".{folder.name}.owner") as pid:
        refusal = rf"{name} \S+ is used by another process \(pid {pid}\): wait for its end"
        with pytest.raises(ConfigurationError, match=refusal), owned(settings):
            pytest.fail("two owners")
    with owned(settings):
        pass


def test_a_run_that_is_owned_can_be_reached_by_no_other_name(settings, tmp_path):
    (tmp_path / "link").symlink_to(settings.run_dir.parent)
    other = settings.having(run_dir=tmp_path / "link" / settings.run_dir.name)
    with (
        locked_elsewhere(settings.run_dir.parent / f".{settings.run_dir.name}.owner"),
        pytest.raises(ConfigurationError, match="is used by another process"),
        owned(other),
    ):
        pytest.fail("two owners")


def test_a_demo_does_not_rename_a_run_that_goes_on(tmp_path):
    run_dir = tmp_path / "demo"
    run_dir.mkdir()
    with (
        locked_elsewhere(tmp_path / ".demo.owner"),
        pytest.raises(ConfigurationError, match="is used by another process"),
        only_demo(run_dir),
    ):
        pytest.fail("it began")
    assert run_dir.exists()
    with only_demo(run_dir):
        pass
    (aside,) = tmp_path.glob("demo.*")
    assert aside.is_dir()
    assert not run_dir.exists()


def test_a_second_demo_of_a_run_waits_for_the_end_of_the_first(tmp_path):
    """Also while nothing trains: the first evaluates what is in the run's folder."""
    with (
        locked_elsewhere(tmp_path / ".demo.demo"),
        pytest.raises(ConfigurationError, match=r"shows this demo in .*--seed"),
        only_demo(tmp_path / "demo"),
    ):
        pytest.fail("it began")


def start(run_dir, error, *files):
    """A start that writes these files and a folder, and then fails."""
    with undone_if_refused(run_dir):
        (run_dir / "checkpoints").mkdir(parents=True)
        for name in ("settings.toml", "heartbeat.json", *files):
            (run_dir / name).write_text("")
        raise error


@pytest.mark.parametrize("error", [ConfigurationError("no server"), typer.Exit(2)])
def test_a_refused_start_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)):
        start(tmp_path / "run", error)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(type(error)):
        start(tmp_path / "run", error)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"notes.txt", "heartbeat.json"}


@pytest.mark.parametrize(
    ("error", "files"),
    [
        (typer.Exit(1), []),
        (typer.Exit(75), []),
        (KeyboardInterrupt(), []),
        (ConfigurationError("after the first scores"), ["best.json"]),
    ],
)
def test_other_ends_leave_all(tmp_path, error, files):
    with pytest.raises(type(error)):
        start(tmp_path / "run", error, *files)
    assert (tmp_path / "run" / "settings.toml").exists()
