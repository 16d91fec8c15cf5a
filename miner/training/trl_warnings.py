"""What TRL would print about rows that are as they should be."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("trl.trainer.grpo_trainer")


class _WithoutRewards(logging.Filter):
    """Drops the warning about rows without a reward, which prints all columns of one.

    Such a row is an episode that was lost, and the scheduler has said so.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in str(record.msg)


_FILTER = _WithoutRewards()


def silence_lost_rows() -> None:
    """Keep TRL from warning of each lost episode (idempotent)."""
    _LOGGER.addFilter(_FILTER)
