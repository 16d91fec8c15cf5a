"""What TRL would print about rows that are as they should be."""

from __future__ import annotations

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Not the warning about a row without a reward, which prints all its columns.

    Such a row is an episode that was lost, and the scheduler has said so.
    """
    return "All reward functions returned None" not in str(record.msg)


def silence_lost_rows() -> None:
    """Keep TRL from warning of each lost episode (idempotent)."""
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_worth_saying)
