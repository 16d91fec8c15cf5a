"""`python -m miner train` with bad input: one sentence on stderr and a status that fits."""

import pytest

from tests.builders import build_qwen3, save_base
from tests.training.commands import places


@pytest.fixture
def chatty(tmp_path):
    return save_base(tmp_path / "chatty", build_qwen3(max_position_embeddings=4096))


@pytest.fixture
def refused(train, tmp_path):
    def refused(arguments, status, *words, **environ):
        code, said = train(*arguments, **environ)
        assert code == status, said.err
        (sentence,) = [line for line in said.err.splitlines() if line.startswith("error:")]
        for word in words:
            assert word in sentence
        assert "Traceback" not in said.err
        assert not (tmp_path / "run").exists()
        out = tmp_path / "out"
        assert not out.exists() or not any(p.name.startswith(".repo.st") for p in out.rglob("*"))

    return refused


def test_no_server_is_refused(refused, tmp_path, chatty):
    refused(places(tmp_path, chatty), 2, "ENVIRONMENT_SERVER_URLS", "channel=builtin")


def test_a_missing_model_is_refused(refused, tmp_path):
    refused(places(tmp_path, tmp_path / "absent"), 2, "absent", "model.path")


def test_several_processes_are_started_by_the_command_itself(refused, tmp_path, chatty):
    arguments = [*places(tmp_path, chatty), "environment.channel=builtin"]
    refused(arguments, 2, "--processes", WORLD_SIZE="2")


def test_processes_that_would_tear_groups_apart_are_refused(refused, tmp_path, chatty):
    arguments = ["--processes", "3", "--dry-run", *places(tmp_path, chatty)]
    refused(arguments, 2, "rollout.groups_per_step=16", "multiple of 3")


def test_dry_run_prints_settings_and_does_nothing(train, tmp_path):
    code, said = train("--dry-run", f"run_dir={tmp_path / 'run'}", "seed=5")
    assert code == 0
    assert "seed = 5" in said.out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("channel", ["auto", "builtin"])
def test_the_models_own_folder_is_not_published_to(refused, tmp_path, chatty, channel):
    before = {path: path.read_bytes() for path in chatty.iterdir()}
    arguments = [*places(tmp_path, chatty), f"output.dir={chatty}"]
    refused([*arguments, f"environment.channel={channel}"], 2, "output.dir", "base model's folder")
    assert {path: path.read_bytes() for path in chatty.iterdir()} == before


def test_a_step_that_memory_cannot_hold_is_refused(refused, tmp_path, chatty):
    arguments = [*places(tmp_path, chatty), "environment.channel=builtin"]
    refused([*arguments, "rollout.group_size=1000000000"], 2, "GB at least", "rollout.group_size")
