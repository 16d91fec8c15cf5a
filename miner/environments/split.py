"""The held-out part of a fixed set of problems: the same in every run, so that runs compare."""

import random
from collections.abc import Iterable
from typing import TypeVar

HELD_OUT_SHARE = 0.2
_SEED = 20

Problem = TypeVar("Problem")


def split(problems: Iterable[Problem]) -> tuple[list[Problem], list[Problem]]:
    """The held-out problems, at least one of them, and those to train on."""
    every = list(problems)
    random.Random(_SEED).shuffle(every)
    cut = max(1, round(HELD_OUT_SHARE * len(every)))
    return every[:cut], every[cut:]
