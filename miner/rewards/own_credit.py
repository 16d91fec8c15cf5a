"""A miner's own idea of credit: a function of yours makes the advantages (`reward.entry`)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from miner.config.errors import ConfigurationError
from miner.environments.own.entry import load_function
from miner.rollout.trajectory import Trajectory

OwnCredit = Callable[[Sequence[Trajectory | None]], Sequence[Sequence[float] | None]]
"""Of a group's episodes, all of one task, None where one was lost: an advantage for each turn."""


def load_credit(entry: str) -> OwnCredit:
    """The function that `entry` names, as own_credit.py:credit; its results are checked.

    Raises: `ConfigurationError` for one that cannot be imported; the returned function does for
        what it raises, and for results that are not a finite number for each turn.
    """
    function = load_function(entry, "reward.entry", "credit", list)

    def credit(group: Sequence[Trajectory | None]) -> Sequence[Sequence[float] | None]:
        if all(member is None for member in group):
            return [None] * len(group)
        found = function(group)
        if len(found) != len(group):
            raise ConfigurationError(
                f"reward.entry {entry!r} returned {len(found)} lists for a group of {len(group)}"
            )
        for member, values in zip(group, found, strict=True):
            if member is None:
                continue
            if not _is_a_number_for_each(member.turns, values):
                raise ConfigurationError(
                    f"reward.entry {entry!r} returned {values!r} for an episode of "
                    f"{len(member.turns)} turns: expected a finite number for each"
                )
        return [
            None if member is None else list(map(float, values))
            for member, values in zip(group, found, strict=True)
        ]

    return credit


def _is_a_number_for_each(turns: Sequence[Any], values: Any) -> bool:
    try:
        return len(values) == len(turns) and all(map(math.isfinite, values))
    except TypeError:  # None, a number, or a list of something else
        return False
