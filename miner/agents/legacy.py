"""TRL's first OpenEnv integrations, for today's trainer: rollout functions and their helper."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from miner.agents.client import prompt_texts
from miner.agents.environment import Environment
from miner.agents.trainer import EnvironmentRollout, config_of
from miner.config.errors import ConfigurationError

NEEDED = ("prompt_ids", "completion_ids", "logprobs")
Rollout = Callable[..., dict[str, list[Any]]]

_engines: WeakKeyDictionary[Any, EnvironmentRollout] = WeakKeyDictionary()
"""By trainer."""


def legacy_rollout(func: Rollout) -> Rollout:
    """`func(prompts, args, processing_class)` as `rollout_func(prompts, trainer)`.

    Such a function gets each prompt once, as a text by the chat template, and returns
    `args.num_generations` completions of each, one prompt's after the other's; `prompt_ids` may
    have one entry per prompt or one per completion. A function of today's form is called as it is.
    Columns beside prompt and completion ids and logprobs reach reward functions as keyword
    arguments.

    Raises: `ConfigurationError` for a function of neither form, and for columns of another length.
    """
    name = getattr(func, "__name__", type(func).__name__)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(func).parameters.values()
    count = sum(each.kind in kinds and each.default is each.empty for each in parameters)
    if count not in (2, 3):
        raise ConfigurationError(
            f"{name} takes {count} arguments: a rollout function takes (prompts, trainer) "
            "or (prompts, args, processing_class)"
        )

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        if count == 2:
            return checked(func(prompts, trainer), len(prompts), name)
        training = trainer.model.training
        group = trainer.num_generations if training else trainer.num_generations_eval
        asked = _once_each(prompts, group)
        columns = func(prompt_texts(asked, trainer), trainer.args, trainer.processing_class)
        ids = columns.get("prompt_ids") or []
        if group > 1 and len(ids) == len(asked):
            columns = {**columns, "prompt_ids": [row for row in ids for _ in range(group)]}
        return checked(columns, len(prompts), name)

    return rollout


def _once_each(prompts: list[Any], group: int) -> list[Any]:
    """The first of each `group` prompts, which have to be equal."""
    asked = prompts[::group]
    if prompts != [prompt for prompt in asked for _ in range(group)]:
        raise ConfigurationError(
            f"the {len(prompts)} prompts of this process are not whole groups of {group} "
            "generations, as a rollout function (prompts, args, processing_class) needs them: let "
            "num_generations divide per_device_train_batch_size * gradient_accumulation_steps"
        )
    return asked


def checked(columns: dict[str, list[Any]], count: int, name: str) -> dict[str, list[Any]]:
    """The columns. Raises: `ConfigurationError` naming the wrong one."""
    missing = [key for key in NEEDED if key not in columns]
    if missing:
        raise ConfigurationError(f"{name} returned no {missing[0]!r}: all of {NEEDED} are needed")
    for key, values in columns.items():
        if values is not None and len(values) != count:
            raise ConfigurationError(
                f"{name} returned {len(values)} entries of {key!r} for {count} completions: one "
                "for each is expected"
            )
    return columns


def generate_rollout_completions(
    trainer: Any,
    prompts: Sequence[Any],
    *,
    generation_overrides: Mapping[str, Any] | None = None,
    as_chat: bool | None = None,
) -> list[dict[str, Any]]:
    """TRL's former helper of rollout functions: a completion of each prompt, in their order.

    Args:
        trainer: with `use_vllm` its vLLM samples, else its model itself.
        prompts: texts, taken as they are, and conversations, by the chat template.
        generation_overrides: of this call, by the names in `miner.agents.trainer.HONOURED`.
        as_chat: True makes a text one user message.

    Returns: per prompt `prompt_ids`, `completion_ids`, `logprobs` (one per completion id) and
        `text` (without special tokens).
    Raises: `ConfigurationError`, `SamplerError`, `EngineLostError`.
    """
    engine = _engines.setdefault(trainer, EnvironmentRollout(Environment()))
    config = config_of(trainer.args, **(generation_overrides or {}))
    asked = [
        [{"role": "user", "content": each}] if as_chat and isinstance(each, str) else each
        for each in prompts
    ]
    tokenizer = trainer.processing_class
    made = engine.client(trainer).generate(prompts=prompt_texts(asked, trainer), **vars(config))
    rows = zip(made.prompt_ids, made, made.logprobs, strict=True)
    return [
        {
            "prompt_ids": prompt,
            "completion_ids": ids,
            "logprobs": logprobs,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
        }
        for prompt, ids, logprobs in rows
    ]
