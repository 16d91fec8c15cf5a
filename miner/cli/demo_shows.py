"""Demos: which base model learns, by which recipe, and how long each part takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from miner.config.contract import GRADER_EPISODES

Sizes = Literal["8", "all"]
"""Deck sizes the demo learns."""

DemoModel = Literal["tiny", "smollm2"]
"""Base models the demo learns with."""


@dataclass(frozen=True)
class Show:
    """One demo.

    Attributes:
        name: of the run's folder, before the seed.
        recipe: that is trained by.
        episodes: the grader's games that every player plays at the end; each server plays 48 at
            once.
        training_seconds: evaluations along the way included; the last one and publishing come on
            top.
        base_minutes: least and most for making the base model on two cores.
        rest_minutes: of starting and probing the servers before training, and of what follows it.
        prints_replies: whether they are readable.
        last_weights: compare the newest checkpoint with the base, not what is published: few games
            show no small gain, and the base then stays.
    """

    name: str
    recipe: str
    deck_sizes: tuple[int, ...]
    episodes: int
    training_seconds: float
    base_minutes: tuple[float, float]
    rest_minutes: tuple[int, int]
    prints_replies: bool = False
    last_weights: bool = False


SHOWS: dict[tuple[DemoModel, Sizes], Show] = {
    ("tiny", "8"): Show(
        name="demo-8-cards",
        recipe="tiny-8-cards",
        deck_sizes=(8,),
        episodes=GRADER_EPISODES,
        training_seconds=225.0,
        base_minutes=(1.0, 2.5),
        rest_minutes=(1, 2),
    ),
    ("tiny", "all"): Show(
        name="demo-all-cards",
        recipe="tiny-all-sizes",
        deck_sizes=(8, 10, 12, 14, 16),
        episodes=GRADER_EPISODES,
        training_seconds=690.0,
        base_minutes=(2.0, 5.0),
        rest_minutes=(1, 2),
    ),
    ("smollm2", "8"): Show(
        name="demo-smollm2",
        recipe="smollm2",
        deck_sizes=(8,),
        episodes=32,
        training_seconds=2400.0,
        base_minutes=(0.5, 1.0),
        rest_minutes=(6, 18),
        prints_replies=True,
        last_weights=True,
    ),
}
"""A training of 225 seconds is a little under four minutes, one of 690 under twelve."""


def announce(console: Console, show: Show, seconds: float, *, base_is_there: bool) -> None:
    """Print how long it takes, before it starts.

    Args:
        seconds: of training.
        base_is_there: an earlier demo has made the base model.
    """
    least, most = (0.0, 0.0) if base_is_there else show.base_minutes
    base = "is there already" if base_is_there else f"{least:g} to {most:g} (kept for next time)"
    training = seconds / 60
    fast, slow = show.rest_minutes
    first, last = training + least + fast, training + most + slow
    console.print(
        f"expect {math.floor(first)} to {math.floor(last + 0.5)} minutes: the base model {base}, "
        f"training {training:.1f}, all else {fast} to {slow}",
        highlight=False,
        soft_wrap=True,
    )
