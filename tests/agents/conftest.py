"""A model for the commands and examples of code agents."""

from pathlib import Path

import pytest

from miner.tiny_model.code_agent.build import AgentRecipe, build_agent_base


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base that has seen a few dialogues: enough to run, not to answer."""
    folder = tmp_path_factory.mktemp("model")
    return build_agent_base(folder, recipe=AgentRecipe(steps=3, batch=4))
