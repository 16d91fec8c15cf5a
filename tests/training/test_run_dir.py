"""Resuming: only complete checkpoints count, and only of the same run."""

import json

import pytest

from miner.environments import ConfigurationError
from miner.training.checkpoints import MARKER, newest_checkpoint
from miner.training.run_dir import prepare_run_dir
from miner.training.settings import load_settings


def write_checkpoint(run_dir, step, marker=None):
    folder = run_dir / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if marker is not None:
        (folder / MARKER).write_text(marker)
    return folder


def complete(step, elapsed=1.5):
    return json.dumps({"step": step, "elapsed": elapsed})


def test_the_newest_complete_checkpoint_is_taken(tmp_path):
    write_checkpoint(tmp_path, 20, complete(20, 12.5))
    write_checkpoint(tmp_path, 100, complete(100, 60.0))
    write_checkpoint(tmp_path, 120)  # killed before it was complete
    write_checkpoint(tmp_path, 140, '{"step": 14')  # torn marker
    write_checkpoint(tmp_path, 160, complete(150))  # a marker copied from elsewhere
    found = newest_checkpoint(tmp_path / "checkpoints")
    assert (found.step, found.elapsed, found.path.name) == (100, 60.0, "checkpoint-100")


def test_no_folder_means_no_checkpoint(tmp_path):
    assert newest_checkpoint(tmp_path / "absent") is None


def settings(tmp_path, *overrides):
    return load_settings(None, [f"run_dir={tmp_path / 'run'}", *overrides], environ={})


def test_settings_are_written_and_equal_ones_resume(tmp_path):
    assert prepare_run_dir(settings(tmp_path, "seed=4")) is None
    write_checkpoint(tmp_path / "run", 20, complete(20))
    resumed = prepare_run_dir(settings(tmp_path, "seed=4", "deadline.seconds=60"))
    assert resumed.step == 20
    assert load_settings(tmp_path / "run" / "settings.toml", environ={}).deadline.seconds == 60


def test_other_settings_are_refused_and_named(tmp_path):
    prepare_run_dir(settings(tmp_path, "seed=4"))
    with pytest.raises(ConfigurationError, match=r"rollout\.group_size, .*seed|seed.*rollout"):
        prepare_run_dir(settings(tmp_path, "seed=5", "rollout.group_size=16"))
    assert load_settings(tmp_path / "run" / "settings.toml", environ={}).seed == 4


def test_records_of_a_run_without_a_checkpoint_start_afresh(tmp_path):
    prepare_run_dir(settings(tmp_path))
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    prepare_run_dir(settings(tmp_path))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        prepare_run_dir(settings(tmp_path))
