"""Prompts as token ids, and samples of many at once for callers without an event loop."""

import asyncio
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from miner.background_loop import BackgroundLoop
from miner.inference.sampler import Sample, Sampler, SamplingParams


def prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a prompt, with one beginning-of-sequence token where the model has one."""
    special = not begins_with(tokenizer.bos_token, text)
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def begins_with(bos_token: str | None, text: str) -> bool:
    """Return whether a chat template has written the token already."""
    return bool(bos_token) and text.startswith(str(bos_token))


def sample_all(
    sampler: Sampler,
    loop: BackgroundLoop,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[Sample]:
    """One sample of each prompt, in their order, all in flight at once.

    Raises: `SamplerError`.
    """

    async def gathered() -> list[Sample]:
        try:
            async with asyncio.TaskGroup() as group:  # one that fails ends the others' requests
                asked = [group.create_task(sampler.sample(ids, params)) for ids in prompts]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [each.result() for each in asked]

    return loop.run(gathered())
