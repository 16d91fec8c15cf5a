"""Demos: which base model learns, by which recipe, and how long each part takes."""

from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

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
        other_minutes: least and most of all else on two cores: making the base model, starting and
            probing the servers, and what follows training.
        prints_replies: true if they are readable.
        last_weights: compare the newest checkpoint with the base, not what is published: few games
            show no small gain, and the base then stays.
    """

    name: str
    recipe: str
    deck_sizes: tuple[int, ...]
    episodes: int
    training_seconds: float
    other_minutes: tuple[int, int]
    prints_replies: bool = False
    last_weights: bool = False

    def expected(self, seconds: float) -> str:
        """Sentence on the minutes that the demo takes, given the seconds of training."""
        training, (least, most) = seconds / 60, self.other_minutes
        return (
            f"expect {floor(training + least)} to {ceil(training + most)} minutes: training "
            f"{training:.1f}, all else {least} to {most} (less once the base model is made)"
        )


SHOWS: dict[tuple[DemoModel, Sizes], Show] = {
    ("tiny", "8"): Show(
        name="demo-8-cards",
        recipe="tiny-8-cards",
        deck_sizes=(8,),
        episodes=GRADER_EPISODES,
        training_seconds=150.0,
        other_minutes=(2, 5),
    ),
    ("tiny", "all"): Show(
        name="demo-all-cards",
        recipe="tiny-all-sizes",
        deck_sizes=(8, 10, 12, 14, 16),
        episodes=GRADER_EPISODES,
        training_seconds=400.0,
        other_minutes=(3, 7),
    ),
    ("smollm2", "8"): Show(
        name="demo-smollm2",
        recipe="smollm2",
        deck_sizes=(8,),
        episodes=32,
        training_seconds=1500.0,
        other_minutes=(7, 19),
        prints_replies=True,
        last_weights=True,
    ),
}
