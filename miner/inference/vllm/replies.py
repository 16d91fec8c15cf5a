"""Requests to vLLM and valid replies, over HTTP and in this process alike.

Invariants:
* the distribution drawn from is the softmax at the given temperature and nothing else: every
  sampling parameter is named, because vLLM fills in what is not from the model's
  generation_config.json (top-p, top-k, repetition penalty);
* no two requests of a run draw with the same random numbers: a server's each have a seed of their
  own, because engines that vLLM starts side by side, or starts again, all begin with the same one;
* a reply becomes a sample only if an engine that did what it was asked could have given it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from miner.inference.sampler import FinishReason, Sample, SamplerError, room_for_reply

LOGPROB_SLACK = 1e-3
"""A logarithm of a probability may be this far above 0 by rounding."""

LOWEST_LOGPROB = -9999.0
"""vLLM's value for a probability of 0: no token can have been drawn with it."""


@dataclass(frozen=True)
class ReplyRules:
    """The model's side of it: ids are below `vocabulary`, `eos_token_ids` end a reply, prompt and
    reply together are at most `context` tokens."""

    eos_token_ids: frozenset[int]
    vocabulary: int
    context: int

    def limit(self, prompt_ids: Sequence[int], max_tokens: int) -> int:
        """Longest reply to `prompt_ids`. Raises: `SamplerError` for a prompt that cannot be run."""
        return min(max_tokens, room_for_reply(prompt_ids, self.vocabulary, self.context))

    def options(
        self,
        limit: int,
        temperature: float,
        stop: Sequence[str] = (),
        *,
        seed: int | None = None,
    ) -> dict[str, Any]:
        """vLLM's sampling parameters for the plain softmax, none left to the model's defaults."""
        options: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": sorted(self.eos_token_ids),
            "logprobs": 0,
        }
        if seed is not None:
            options["seed"] = seed
        if stop:
            options["stop"] = list(stop)
        return options

    def sample(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        finish_reason: str,
        *,
        limit: int,
        weight_version: int,
        source: str,
        stop: Sequence[str] = (),
        stop_reason: int | str | None = None,
        cached_tokens: int | None = None,
    ) -> Sample:
        """The reply as a sample.

        Args:
            stop: the stop strings that were asked for.
            stop_reason: the one that ended the reply, by the engine, if any.
            cached_tokens: see `Sample`.

        Raises: `SamplerError` for a reply that no engine may give.
        """
        reason = "stop_string" if finish_reason == "stop" and stop_reason in stop else finish_reason
        trouble = self._trouble(ids, logprobs, reason, limit)
        if trouble:
            raise SamplerError(f"{source} {trouble}: check its version and flags")
        return Sample(
            token_ids=tuple(ids),
            logprobs=tuple(min(0.0, value) for value in logprobs),
            finish_reason=cast(FinishReason, reason),
            weight_version=weight_version,
            cached_tokens=cached_tokens,
        )

    def _trouble(
        self, ids: Sequence[int], logprobs: Sequence[float], finish_reason: str, limit: int
    ) -> str:
        count, eos = len(ids), self.eos_token_ids
        if not 1 <= count <= limit or count != len(logprobs):
            return f"gave {count} ids with {len(logprobs)} logprobs, asked for 1 to {limit} of both"
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            return f"gave ids outside 0..{self.vocabulary - 1}"
        if not all(math.isfinite(v) and LOWEST_LOGPROB < v <= LOGPROB_SLACK for v in logprobs):
            return f"gave logprobs {min(logprobs)} to {max(logprobs)} that no drawn token can have"
        if any(token in eos for token in ids[:-1]):
            return "continued after the token that ends a reply"
        if finish_reason not in get_args(FinishReason):
            return f"ended a reply with {finish_reason!r}"
        if (finish_reason == "stop") != (ids[-1] in eos):
            return f"ended a reply with {finish_reason!r} on the id {ids[-1]}"
        if finish_reason == "length" and count < limit:
            return f"cut a reply off after {count} of {limit} tokens"
        return ""
