"""Servers that are all dead end a run; they never turn it into one on other episodes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import InfrastructureError
from miner.training import episodes
from miner.training.episodes import training_source
from mock_env_server.running import running_server


def source_name(tmp_path: Path, *overrides: str, servers: str = "") -> str:
    settings = Settings.load(
        None, [f"run_dir={tmp_path}", *overrides], environ={"ENVIRONMENT_SERVER_URLS": servers}
    )
    console = Console(file=io.StringIO())
    with BackgroundLoop() as loop, training_source(settings, loop, console, Ranks()) as source:
        return source.name


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "SERVER_PATIENCE_S", 0.0)


@pytest.mark.parametrize("channel", ["auto", "graded", "step"])
def test_dead_servers_are_an_error_and_no_reason_to_play_in_process(
    tmp_path: Path, channel: str
) -> None:
    with pytest.raises(InfrastructureError, match="builtin"):
        source_name(
            tmp_path, f"environment.channel={channel}", servers="http://127.0.0.1:1,http://[::1]:1"
        )


def test_no_servers_are_an_error_unless_a_person_wants_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ENVIRONMENT_SERVER_URLS"):
        source_name(tmp_path)
    assert source_name(tmp_path, "environment.channel=builtin") == "builtin"


def test_one_living_server_of_two_is_played_on(tmp_path: Path) -> None:
    with running_server("faithful") as server:
        urls = f"http://127.0.0.1:1,{server.base_url}"
        assert source_name(tmp_path, servers=urls) == "graded"


@pytest.mark.parametrize("rival", ["base", "snapshot", "FOLDER", "me=FOLDER"])
def test_models_do_not_sit_opposite_where_gpus_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    """Their memory is in no plan. The refusal comes before any model is loaded: there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    rival = rival.replace("FOLDER", str(tmp_path))
    words = ("environment.channel=duel", f"model.path={tmp_path}/none")
    with pytest.raises(ConfigurationError, match=rf"names models \({rival}\).* mcts:SIMULATIONS"):
        source_name(tmp_path, *words, f'environment.opponents=["random", "{rival}"]')
