"""Filters for warnings of TRL and transformers that are no problem here."""

import logging


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Not the warning about a row without a reward, which prints all its columns.

    Such a row is an episode that was lost, which the scheduler has logged.
    """
    return "All reward functions returned None" not in str(record.msg)


def _is_no_tied_head(record: logging.LogRecord) -> bool:
    """Not the warning that a checkpoint lacks the head alone: it is the embedding's weight."""
    return "missing keys in the checkpoint model loaded: ['lm_head.weight']" not in (
        record.getMessage()
    )


def silence_harmless_warnings() -> None:
    """Drop TRL's warning of each lost episode and transformers' of a tied head (idempotent)."""
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_is_worth_saying)
    logging.getLogger("transformers.trainer").addFilter(_is_no_tied_head)
