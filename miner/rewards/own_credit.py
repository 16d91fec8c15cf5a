"""A miner's own idea of credit: a function of yours makes the advantages (`reward.entry`)."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from miner.config.errors import ConfigurationError
from miner.environments.own.entry import load_function, number_of
from miner.rollout.trajectory import Trajectory

OwnCredit = Callable[[Sequence[Trajectory | None]], Sequence[Sequence[float] | None]]
"""Of a group's episodes, all of one task, None where one was lost: an advantage for each turn."""


def load_credit(entry: str) -> OwnCredit:
    """The function that `entry` names, as own_credit.py:credit; its results are checked.

    Raises: `ConfigurationError` for one that cannot be imported; the returned function does for
        what it raises, and for results that are not a finite number for each turn.
    """
    function = load_function(entry, "reward.entry", "credit(group)", list)

    def credit(group: Sequence[Trajectory | None]) -> Sequence[Sequence[float] | None]:
        if all(member is None for member in group):
            return [None] * len(group)
        found = function(tuple(group))  # one that sorted it in place would mix its members up
        if len(found) != len(group):
            raise ConfigurationError(
                f"reward.entry {entry!r} returned {len(found)} lists for a group of {len(group)}"
            )
        advantages: list[Sequence[float] | None] = [None] * len(group)
        for place, (member, values) in enumerate(zip(group, found, strict=True)):
            if member is None:
                continue
            advantages[place] = numbers = _numbers(values)
            if len(numbers) != len(member.turns):
                raise ConfigurationError(
                    f"reward.entry {entry!r} returned {values!r} for an episode of "
                    f"{len(member.turns)} turns: expected a finite number for each"
                )
        return advantages

    return credit


def _numbers(values: Any) -> list[float]:
    """Finite ones; none where anything else is among them, or they have no order."""
    if not hasattr(values, "__iter__") or isinstance(values, Mapping | Set):
        return []
    found = [*map(number_of, values)]
    known = [number for number in found if number is not None and math.isfinite(number)]
    return known if len(known) == len(found) else []
