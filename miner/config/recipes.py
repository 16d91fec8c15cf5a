"""Recipes: measured settings, in files that the demo, compose, the image and the docs read.

A recipe is a file of settings with a table `[recipe]`: what it is about, which recipe it builds on
(`extends`), the largest model it is meant for (`largest`, parameters), the factor of the learning
rate where adapters are trained (`lora_rate`), and the settings that differ where it is not the
servers' Goofspiel (`other_games`, in duels too) or sampled replies have the credit
(`policy_gradient`). Any file of settings may have that table, to start from a recipe by its name;
what it sets itself wins over what those tables of the recipe say.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from miner.config.channel_facts import FACTS
from miner.config.contract import GOOFSPIEL
from miner.config.errors import ConfigurationError
from miner.config.overrides import Tree, merged, value_at

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


class RecipeTable(BaseModel):
    """The table `[recipe]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = Field("", description="One sentence for the choice.")
    extends: str | None = Field(None, description="The recipe whose settings these override.")
    largest: float | None = Field(
        None, gt=0, description="Parameters of the largest model; empty: only chosen by name."
    )
    lora_rate: float | None = Field(
        None, gt=0, description="Factor of optimizer.learning_rate where model.tuning is lora."
    )
    other_games: dict[str, Any] = Field(
        {}, description="Settings where it is not the servers' Goofspiel."
    )
    policy_gradient: dict[str, Any] = Field(
        {}, description="Settings where sampled replies have the credit."
    )


@dataclass(frozen=True)
class Recipe:
    """Settings that belong together, with the fields of `RecipeTable`."""

    name: str
    largest: float | None
    settings: Tree
    lora_rate: float
    other_games: Tree
    policy_gradient: Tree

    def under(self, tree: Tree) -> Tree:
        """`tree` on top of this recipe, as it is for the tuning and the game that result."""
        whole = merged(self.settings, tree)
        fitted = [self.settings]
        channel = FACTS.get(str(value_at(whole, "environment.channel")))
        served = channel is None or channel.first_format
        if not served or value_at(whole, "environment.name") not in (None, GOOFSPIEL):
            fitted.append(self.other_games)
        targets = value_at(merged(*fitted, tree), "reward.credit") == "all_moves"
        if not served or not targets:
            fitted.append({"rollout": {"guided": 0.0}})  # only the servers' critic guides
        if not targets and not (channel and channel.supervised):
            fitted.append(self.policy_gradient)
        fit = merged(*fitted)
        rate = value_at(fit, "optimizer.learning_rate")
        if isinstance(rate, int | float) and value_at(whole, "model.tuning") == "lora":
            fit = merged(fit, {"optimizer": {"learning_rate": rate * self.lora_rate}})
        return merged(fit, tree)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file of settings, what it extends included.

    Raises: `ConfigurationError` naming the file, and what is wrong with it.
    """
    tree = read_toml(path)
    try:
        table = RecipeTable.model_validate(tree.pop("recipe", {}))
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(f"{path}: recipe.{key}: {problem['msg']}") from None
    base = Recipe("", None, {}, 1.0, {}, {}) if table.extends is None else recipe(table.extends)
    own_rate = value_at(tree, "optimizer.learning_rate") is not None
    return Recipe(
        path.stem,
        table.largest,
        merged(base.settings, tree),
        table.lora_rate or (1.0 if own_rate else base.lora_rate),
        merged(_left(base.other_games, tree), table.other_games),
        merged(_left(base.policy_gradient, tree), table.policy_gradient),
    )


def _left(table: Tree, tree: Tree) -> Tree:
    """`table` without the keys that `tree` sets."""
    return {
        key: _left(value, _table(tree.get(key))) if isinstance(value, dict) else value
        for key, value in table.items()
        if isinstance(value, dict) or key not in tree
    }


def _table(value: Any) -> Tree:
    """`value`, or nothing where it is no table, which validation will say."""
    return value if isinstance(value, dict) else {}


def recipe(name: str) -> Recipe:
    """A shipped recipe by its name. Raises: `ConfigurationError` naming the known ones."""
    path = RECIPES / f"{name}.toml"
    if not path.is_file():
        names = ", ".join(sorted(each.stem for each in RECIPES.glob("*.toml")))
        raise ConfigurationError(f"there is no recipe {name!r}: choose one of {names}")
    return read_recipe(path)


def recipe_for(parameters: int) -> Recipe:
    """The shipped recipe for a model of this size: the first by size that it fits into."""
    sized = [(each.largest, each.name) for each in map(read_recipe, RECIPES.glob("*.toml"))]
    _, name = min((largest, name) for largest, name in sized if largest and parameters <= largest)
    return recipe(name)


def read_toml(path: Path) -> Tree:
    """A file of settings as it is. Raises: `ConfigurationError` naming it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigurationError(f"settings file {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(f"settings file {path} cannot be read: {error}") from None
