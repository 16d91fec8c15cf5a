"""A base model that knows hardly more than the form, built once for all training tests."""

from dataclasses import replace

import pytest

from miner.tiny_model.build import Recipe, build_tiny_model
from miner.tiny_model.number_following import DataRecipe
from miner.tiny_model.warm_start import WarmStartRecipe


@pytest.fixture(scope="session")
def rough_base(tmp_path_factory):
    """A tiny model after a short warm start on soft rules: many of its replies are invalid."""
    out = tmp_path_factory.mktemp("models") / "rough"
    recipe = replace(
        Recipe(), data=DataRecipe(sharpness=(1.0, 2.0)), warm_start=WarmStartRecipe(steps=320)
    )
    return build_tiny_model(out, recipe=recipe, seed=0)
