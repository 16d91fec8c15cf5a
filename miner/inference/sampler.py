"""The one protocol behind which every generation engine hides: token ids in, token ids out."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "stop_string"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one reply. `temperature` 0 means greedy; top-p is always 1 (see docs).

    Attributes:
        stop: texts at the end of which a reply ends, special tokens not counting as text.
    """

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled reply.

    Attributes:
        token_ids: the sampled ids, verbatim, including the end-of-turn token if one was sampled.
        logprobs: natural-log probability of each id under the distribution it was drawn from.
        finish_reason: "stop" when it ends on an end-of-turn token, "stop_string" on the token that
            completed one of `SamplingParams.stop` (and may reach beyond it), else "length".
        weight_version: version of the weights that generated it (0 = the base model).
        cached_tokens: tokens of the prompt whose states were held; None where that is not known.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int = 0
    cached_tokens: int | None = None


class Sampler(Protocol):
    """Many requests in flight; each returns as soon as its own reply is complete."""

    @property
    def context(self) -> int:
        """Tokens that a prompt and its reply may have together."""

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """Sample one reply to `prompt_ids`.

        `session` identifies a conversation whose prompts extend each other, so that an engine
        without automatic prefix caching can keep its key-value cache between turns.
        Raises: `SamplerError` when the engine fails for good.
        """

    async def end_session(self, session: int) -> None:
        """Drop the state of `session` (idempotent)."""


_SESSIONS = itertools.count()


def new_session() -> int:
    """A number that no other conversation of this process has; the next one's is the next."""
    return next(_SESSIONS)


class SamplerError(RuntimeError):
    """The generation engine failed; the episode it was for is retried or counted as lost."""


class EngineLostError(SamplerError):
    """An engine cannot be reached or has lost its weights: recover it, then play again."""


def room_for_reply(prompt_ids: Sequence[int], vocabulary: int, context: int) -> int:
    """Largest number of tokens of a reply to `prompt_ids`, at least 1.

    Raises: `SamplerError` for a prompt that a model with ids below `vocabulary` and a context of
        `context` tokens cannot answer.
    """
    if not prompt_ids or not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
        raise SamplerError(
            f"a prompt of {len(prompt_ids)} ids is empty or has ids outside "
            f"0..{vocabulary - 1}: use the tokenizer that belongs to the model"
        )
    room = context - len(prompt_ids)
    if room < 1:
        raise SamplerError(
            f"a prompt of {len(prompt_ids)} ids leaves no room for a reply in the model's "
            f"context of {context}: lower the episode's token limit"
        )
    return room
