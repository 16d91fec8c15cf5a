"""For authors who bring their own rollout function: prompts in, completions out, any engine.

The semantics are those that `trl.experimental.openenv.generate_rollout_completions` had until TRL
removed it: one dictionary per prompt, with `prompt_ids`, `completion_ids`, `logprobs`, `text`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.environments.base import Message
from miner.inference.sampler import Sample, Sampler, SamplingParams

Prompt = str | Sequence[Message]

OVERRIDES = ("max_tokens", "temperature")
"""Parameters that a call may change; any other would change the trained distribution."""


class RolloutCompletions:
    """Callable from a rollout function's thread; all prompts of a call are in flight at once.

    Args:
        sampler: any engine's; used from `loop` only.
        params: of calls without overrides.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: PreTrainedTokenizerBase,
        loop: BackgroundLoop,
        params: SamplingParams,
    ) -> None:
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._loop = loop
        self._params = params

    def __call__(
        self,
        prompts: Sequence[Prompt],
        *,
        as_chat: bool | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Sample one completion per prompt, in the prompts' order.

        Args:
            prompts: texts or conversations.
            as_chat: render with the chat template, a text as one user message; None: exactly what
                is a conversation.
            overrides: `max_tokens` and `temperature` of this call.

        Returns: per prompt `prompt_ids`, `completion_ids` (with the end token if one was sampled),
            `logprobs` (one per completion id) and `text` (without special tokens).
        Raises: `ConfigurationError` for an invalid override, `SamplerError`.
        """
        params = self._with(overrides or {})
        prompt_ids = [self._ids(prompt, as_chat) for prompt in prompts]
        samples = sample_all(self._sampler, self._loop, prompt_ids, params)
        return [
            {
                "prompt_ids": ids,
                "completion_ids": list(sample.token_ids),
                "logprobs": list(sample.logprobs),
                "text": self._tokenizer.decode(list(sample.token_ids), skip_special_tokens=True),
            }
            for ids, sample in zip(prompt_ids, samples, strict=True)
        ]

    def _with(self, overrides: Mapping[str, Any]) -> SamplingParams:
        unknown = sorted(set(overrides) - set(OVERRIDES))
        if unknown:
            raise ConfigurationError(
                f"override {unknown[0]!r} would change the distribution that is trained: only "
                f"{' and '.join(OVERRIDES)} can be set"
            )
        return replace(self._params, **overrides)

    def _ids(self, prompt: Prompt, as_chat: bool | None) -> list[int]:
        if isinstance(prompt, str):
            if not as_chat:
                return prompt_ids(self._tokenizer, prompt)
            messages: list[Message] = [{"role": "user", "content": prompt}]
        elif as_chat is False:
            raise ConfigurationError(
                "as_chat=False needs texts and got a conversation: leave as_chat out"
            )
        else:
            messages = list(prompt)
        conversation = [{"role": m["role"], "content": m["content"]} for m in messages]
        text = self._tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False
        )
        return list(self._tokenizer(str(text), add_special_tokens=False)["input_ids"])


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
