"""Refusal of steps that this machine's memory cannot hold, before anything is started."""

from __future__ import annotations

import os

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings

EPISODE_BYTES = 8 << 10
"""At least, of an episode in play: its environment, its tasks on the event loop, its messages."""

TOKEN_BYTES = 48
"""At least: token id, mask and log-probability as list items, and the float."""

USUAL_TOKENS = 256
"""Assumed of an episode where `rollout.max_episode_tokens` is not set: fewer than any game has."""


def check_memory(settings: Settings, total: int | None = None) -> None:
    """Raise `ConfigurationError` if the episodes of a step or an evaluation cannot be held.

    A lower bound, for numbers that cannot be meant: a step that passes may still be too large.

    Args:
        total: bytes of memory; looked up by default.
    """
    total = total or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    each = EPISODE_BYTES + TOKEN_BYTES * (settings.rollout.max_episode_tokens or USUAL_TOKENS)
    counts = {
        "rollout.group_size or rollout.groups_per_step": settings.episodes_per_step,
        "evaluation.episodes": settings.evaluation.episodes,
    }
    for name, count in counts.items():
        if count * each > total:
            raise ConfigurationError(
                f"{count:,} episodes at once take {count * each / 1e9:,.0f} GB at least, and this "
                f"machine has {total / 1e9:,.0f}: lower {name}"
            )
