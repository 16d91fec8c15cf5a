"""Settings as nested tables before they are checked: `KEY=VALUE` texts, and one table over another.

A tree is what a TOML file holds: sections as dicts, values as TOML has them.
"""

import tomllib
from collections.abc import Sequence
from typing import Any

from miner.config.errors import ConfigurationError

Tree = dict[str, Any]


def parse_overrides(texts: Sequence[str]) -> Tree:
    """`rollout.group_size=16` texts as one tree, later ones winning.

    Values are TOML where they parse as such, else plain strings.
    Raises: `ConfigurationError` naming the text.
    """
    tree: Tree = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip(". "):
            raise ConfigurationError(
                f"setting {text!r} is not KEY=VALUE: write it like rollout.group_size=16"
            )
        _put(tree, key.strip(), parse_value(value.strip()))
    return tree


def merged(*trees: Tree) -> Tree:
    """One tree of all, a later one winning value by value; none of them is changed."""
    result: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            below = result.get(key)
            if isinstance(value, dict):
                result[key] = merged(below if isinstance(below, dict) else {}, value)
            else:
                result[key] = value
    return result


def value_at(tree: Tree, key: str) -> Any:
    """The value of a dotted name, None where it is not set."""
    node: Any = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _put(tree: Tree, key: str, value: Any) -> None:
    *parents, leaf = key.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigurationError(f"setting {key!r}: {parent!r} is a value, not a section")
    tree[leaf] = value


def parse_value(text: str) -> Any:
    """A value as TOML has it, or the text where it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
