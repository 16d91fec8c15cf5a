"""A filter for a warning of TRL that is no problem here."""

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Not the warning about a row without a reward, which prints all its columns.

    Such a row is an episode that was lost, which the scheduler has logged.
    """
    return "All reward functions returned None" not in str(record.msg)


def silence_harmless_warnings() -> None:
    """Drop TRL's warning of each lost episode (idempotent)."""
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_worth_saying)
