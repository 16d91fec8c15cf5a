"""Rollout functions of TRL's first OpenEnv integration, for today's trainer."""

import inspect
from collections.abc import Callable
from typing import Any

from miner.config.errors import ConfigurationError

NEEDED = ("prompt_ids", "completion_ids", "logprobs")
Rollout = Callable[..., dict[str, list[Any]]]


def legacy_rollout(func: Rollout) -> Rollout:
    """`func(prompts, args, processing_class)` as `rollout_func(prompts, trainer)`.

    A function of today's form is handed on as it is, with the same check of what it returns: a list
    per column, one entry per prompt. Columns beside prompt and completion ids and logprobs reach
    reward functions as keyword arguments.

    Raises: `ConfigurationError` for a function of neither form.
    """
    count = len(inspect.signature(func).parameters)
    if count not in (2, 3):
        raise ConfigurationError(
            f"{func.__name__} takes {count} arguments: a rollout function takes (prompts, trainer) "
            "or (prompts, args, processing_class)"
        )

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        given = (trainer,) if count == 2 else (trainer.args, trainer.processing_class)
        return checked(func(prompts, *given), len(prompts), func.__name__)

    return rollout


def checked(columns: dict[str, list[Any]], count: int, name: str) -> dict[str, list[Any]]:
    """The columns. Raises: `ConfigurationError` naming the wrong one."""
    missing = [key for key in NEEDED if key not in columns]
    if missing:
        raise ConfigurationError(f"{name} returned no {missing[0]!r}: all of {NEEDED} are needed")
    for key, values in columns.items():
        if values is not None and len(values) != count:
            raise ConfigurationError(
                f"{name} returned {len(values)} entries of {key!r} for {count} prompts: one for "
                "each is expected"
            )
    return columns
