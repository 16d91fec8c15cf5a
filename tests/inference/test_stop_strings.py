"""Replies end at texts, in every engine alike: ids as sampled, the last token may reach beyond."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from miner.inference.sampler import Sample, Sampler, SamplerError, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.inference.transformers.stop_strings import StopStrings
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.inference.vllm.replies import ReplyRules
from miner.inference.vllm.server_sampler import VllmServerSampler
from tests.builders import build_tokenizer
from tests.rollout.sampling import build_endless_qwen3
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.engine_double import EngineDouble
from tests.stub_vllm.serving import stub_in_thread

PROMPT = [5, 6, 7, 8, 9, 10, 11]
RULES = ReplyRules(frozenset({1}), vocabulary=400, context=1024)
LENGTH = 24
ENGINES = ("transformers", "vllm server", "vllm colocated")


@asynccontextmanager
async def engine(name: str) -> AsyncIterator[Sampler]:
    model, tokenizer = build_endless_qwen3(), build_tokenizer()
    if name == "transformers":
        with TransformersSampler(model, tokenizer) as sampler:
            yield sampler
    elif name == "vllm server":
        stub = StubVllm(model, tokenizer)
        with stub_in_thread(stub) as url:
            server = VllmServerSampler(VllmServer(url), RULES)
            yield server
            await server.server.close()
    else:
        colocated = VllmColocatedSampler(
            EngineDouble(model, tokenizer=tokenizer), RULES, make_params=dict
        )
        yield colocated
        colocated.close()


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
