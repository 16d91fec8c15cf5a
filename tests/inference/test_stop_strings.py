"""Replies end at texts, in every engine alike: ids as sampled, the last token may reach beyond."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from miner.inference.sampler import Sample, Sampler, SamplerError, SamplingParams
from miner.inference.transformers.stop_strings import StopStrings
from tests.builders import build_tokenizer
from tests.rollout.engines import ENGINES, sampler_on
from tests.rollout.sampling import RULES, build_endless_qwen3

PROMPT = [5, 6, 7, 8, 9, 10, 11]
LENGTH = 24


def engine(name: str) -> AbstractAsyncContextManager[Sampler]:
    return sampler_on(name, build_endless_qwen3(), build_tokenizer())


async def greedy(sampler: Sampler, *stop: str) -> Sample:
    return await sampler.sample(PROMPT, SamplingParams(LENGTH, 0.0, stop))


def text_of(ids: tuple[int, ...]) -> str:
    return str(build_tokenizer().decode(list(ids), skip_special_tokens=True))


@pytest.mark.parametrize("name", ENGINES)
async def test_a_reply_ends_on_the_token_that_completes_a_stop_string(name: str) -> None:
    async with engine(name) as sampler:
        free = await greedy(sampler)
        text = text_of(free.token_ids)
        stop = text[6:11]  # somewhere across tokens
        ended = await greedy(sampler, "never said", stop)
    assert free.finish_reason == "length"
    assert ended.finish_reason == "stop_string"
    assert ended.token_ids == free.token_ids[: len(ended.token_ids)]
    assert ended.logprobs == free.logprobs[: len(ended.token_ids)]
    assert stop in text_of(ended.token_ids)
    assert stop not in text_of(ended.token_ids[:-1])


@pytest.mark.parametrize("name", ENGINES)
async def test_a_stop_string_that_is_not_generated_changes_nothing(name: str) -> None:
    async with engine(name) as sampler:
        first, again = await greedy(sampler, "never said"), await greedy(sampler)
        assert replace(again, cached_tokens=first.cached_tokens) == first


def test_a_string_counts_wherever_tokens_cut_it() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer("so <code> 12 </code>", add_special_tokens=False)["input_ids"]
    stopped = StopStrings(tokenizer, ("</code>",))
    assert [stopped(ids[:end]) for end in range(1, len(ids) + 1)] == [
        *[False] * (len(ids) - 1),
        True,
    ]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(build_tokenizer(), ("",))


def test_an_end_that_was_not_asked_for_is_not_a_reply() -> None:
    with pytest.raises(SamplerError, match="ended a reply with 'stop' on the id 9"):
        RULES.sample(
            [8, 9], [-0.1, -0.1], "stop", limit=4, weight_version=0, source="it", stop=("a",),
            stop_reason="b",
        )  # fmt: skip
