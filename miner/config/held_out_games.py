"""Held-out games of duels that its gate needs (`miner.publishing.gate`), and other defaults."""

import math
from collections.abc import Collection
from typing import Final

from miner.config.contract import DUEL_REPLY_TOKENS

LAST_PAIRS: Final = 36
"""Fewest pairs of a game whose results training has not changed that let the last weights pass."""

FIRST_PAIRS: Final = 56
"""The same of the first candidate during training. Tests hold both against the gate."""

_TO_SPARE = 1.1
"""Results that differ by chance cost pairs."""

LEAST_GATED: Final = 2 * math.ceil(_TO_SPARE * LAST_PAIRS)
"""Games of each game where there is no time for more."""

USUALLY_GATED: Final = 2 * math.ceil(_TO_SPARE * FIRST_PAIRS)
"""Games of each game where the user sets none."""


def usual_in_duels(games: Collection[str]) -> dict[str, dict[str, int]]:
    """Sections of settings with the values that duels have where the user sets none."""
    return {
        "evaluation": {"episodes": USUALLY_GATED * len(set(games))},
        "rollout": {"max_reply_tokens": DUEL_REPLY_TOKENS},
    }


def few_gated(episodes: int, games: int) -> str:
    """Return why so many held-out games, in turns of so many games, cannot pass; empty if they can.

    A game that training makes better can pass in fewer, but every game has to.
    """
    if (pairs := episodes // 2 // games) >= LAST_PAIRS:
        return ""
    return (
        f"evaluation.episodes={episodes} is too few for the gate of duels: {pairs} pairs of each "
        f"of {games} games, where one that stays as it is needs {LAST_PAIRS}. Unless each game "
        f"becomes better the start is kept; evaluation.episodes={USUALLY_GATED * games} is enough"
    )
