"""Shared by training tests: a base model that knows hardly more than the form, the command."""

from dataclasses import replace

import pytest

from miner.__main__ import main
from miner.tiny_model.build import Recipe, build_tiny_model
from miner.tiny_model.number_following import DataRecipe
from miner.tiny_model.warm_start import WarmStartRecipe
from tests.training.in_process import working_in


@pytest.fixture
def work(tmp_path):
    with working_in(tmp_path) as work:
        yield work


@pytest.fixture(scope="session")
def rough_base(tmp_path_factory):
    """A tiny model after a short warm start on soft rules: many of its replies are invalid."""
    out = tmp_path_factory.mktemp("models") / "rough"
    recipe = replace(
        Recipe(), data=DataRecipe(sharpness=(1.0, 2.0)), warm_start=WarmStartRecipe(steps=320)
    )
    return build_tiny_model(out, recipe=recipe, seed=0)


SET_BY_THE_COMMAND = {
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.fixture
def train(monkeypatch, capsys):
    """Run a command in this process: its status, and what it printed."""

    def train(*arguments, command="train", **environ):
        monkeypatch.delenv("ENVIRONMENT_SERVER_URLS", raising=False)
        for name, value in {**SET_BY_THE_COMMAND, **environ}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.argv", ["miner", command, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    return train
