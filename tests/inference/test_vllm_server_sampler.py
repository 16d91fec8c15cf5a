"""The sampler over HTTP: against a stub that samples for real, and against broken servers."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from miner.inference.sampler import EngineLostError, SamplerError, SamplingParams
from miner.inference.transformers.sampler import eos_token_ids
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.server_sampler import VllmServerSampler
from tests.builders import build_qwen3, build_tokenizer
from tests.environments.raw_server import CLOSE, http, raw_server
from tests.rollout.sampling import PROMPTS, RULES
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.serving import stub_in_thread

EOS = 1


def build_stub(**options):
    return StubVllm(build_qwen3(), build_tokenizer(), **options)


@pytest.fixture
def stub():
    stub = build_stub()
    with stub_in_thread(stub) as stub.url:
        yield stub


def build_sampler(url, tries=3, timeout=60.0, context=1024, seed=0):
    return VllmServerSampler(
        VllmServer(url, reply_timeout_s=timeout),
        replace(RULES, context=context),
        seed=seed,
        tries=tries,
        pause_s=0.01,
    )


async def test_defaults_of_the_models_generation_config_do_not_reach_the_distribution():
    model = build_qwen3()
    model.generation_config.update(top_p=0.8, top_k=20, repetition_penalty=1.1, min_p=0.1)
    stub = StubVllm(model, build_tokenizer())
    with stub_in_thread(stub) as url:
        sampler = build_sampler(url)
        assert (await sampler.sample(PROMPTS[0], SamplingParams(3))).token_ids
        await sampler.server.close()


async def test_replies_end_on_eos_or_at_the_limit_or_at_the_end_of_the_context(stub):
    model = build_qwen3()
    assert eos_token_ids(model, build_tokenizer()) == {EOS}
    sampler = build_sampler(stub.url, context=10)
    samples = await asyncio.gather(
        *(sampler.sample(PROMPTS[0], SamplingParams(400, 2.0)) for _ in range(60))
    )
    ends = {(s.finish_reason, s.token_ids[-1] == EOS) for s in samples}
    assert ends <= {("stop", True), ("length", False)}
    assert ("length", False) in ends
    assert all(len(s.token_ids) == 3 for s in samples if s.finish_reason == "length")
    with pytest.raises(SamplerError, match="leaves no room"):
        await sampler.sample(range(2, 12), SamplingParams(1))
    await sampler.server.close()


async def test_a_conversation_stays_with_one_engine_of_its_server_and_all_have_work():
    stub = build_stub(data_parallel_size=3)
    with stub_in_thread(stub) as url:
        sampler = build_sampler(url)
        await sampler.server.config()
        for turn in range(2):
            await asyncio.gather(
                *(sampler.sample([5 + turn], SamplingParams(2), session=s) for s in range(7, 13))
            )
        await sampler.sample([5], SamplingParams(2))
        await sampler.server.close()
    asked = [body["engine"] for _, body in stub.completions]
    assert Counter(asked) == {0: 4, 1: 4, 2: 4, None: 1}


async def test_no_two_requests_have_the_same_seed(stub):
    for rank in range(2):
        sampler = build_sampler(stub.url, seed=rank)
        await asyncio.gather(*(sampler.sample([5], SamplingParams(1)) for _ in range(10)))
        await sampler.server.close()
    assert len({body["seed"] for _, body in stub.completions}) == 20


async def test_a_server_that_came_back_with_the_base_weights_is_not_sampled_from():
    first, second = build_stub(), build_stub()
    first.weights.version = "3"
    with stub_in_thread(first) as url:
        sampler = build_sampler(url, tries=2)
        sampler.weights_are(3, "3")
        await sampler.sample(PROMPTS[0], SamplingParams(2))
    with pytest.raises(EngineLostError, match="2 tries"):
        await sampler.sample(PROMPTS[0], SamplingParams(2))
    with stub_in_thread(second, port=int(url.rpartition(":")[2])):
        with pytest.raises(EngineLostError, match="weights 'default' instead of '3'"):
            await sampler.sample(PROMPTS[0], SamplingParams(2))
        assert (await sampler.engine_loss()).noticed
        assert second.completions == []
        second.weights.version = "3"
        assert (await sampler.sample(PROMPTS[0], SamplingParams(2))).weight_version == 3
        await sampler.server.close()


async def test_a_server_whose_loss_no_request_has_seen_is_distinguished(stub):
    sampler = build_sampler(stub.url)
    assert await sampler.engine_loss() is None
    sampler.weights_are(2, "2")
    loss = await sampler.engine_loss()
    assert "'default' instead of '2'" in loss.line
    assert not loss.noticed
    await sampler.server.close()


async def test_connections_are_kept_alive():
    reply = reply_of(ids=(5, EOS), reason="stop")
    async with raw_server(lambda path, body: http(reply)) as server:
        sampler = build_sampler(server.url)
        for _ in range(5):
            await sampler.sample([5], SamplingParams(2))
        await sampler.server.close()
    assert server.connections == 1
    assert len(server.requests) == 6  # the model's name once


def reply_of(ids=(5, 6), logprobs=(-1.0, -2.0), reason="length", **extra):
    choice = {
        "index": 0,
        "prompt_token_ids": [5],
        "token_ids": ids,
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": reason,
    }
    return {"choices": [choice], "data": [{"id": "m"}], **extra}


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (reply_of(ids=(5,)), "1 ids with 2 logprobs"),
        (reply_of(ids=(), logprobs=()), "0 ids"),
        (reply_of(ids=(5, 6, 7), logprobs=(-1, -1, -1)), "asked for 1 to 2"),
        (reply_of(ids=(5, 400)), "outside 0..399"),
        (reply_of(logprobs=(-1.0, 0.5)), "that no drawn token can have"),
        (reply_of(logprobs=(-1.0, -9999.0)), "that no drawn token can have"),
        (reply_of(ids=(EOS, 6)), "continued after"),
        (reply_of(reason="abort"), "'abort'"),
        (reply_of(reason="stop"), "'stop' on the id 6"),
        (reply_of(ids=(5, EOS)), "'length' on the id 1"),
        (reply_of(ids=(5,), logprobs=(-1.0,)), "after 1 of 2"),
        ({**reply_of(), "choices": []}, "0 choices"),
        (reply_of(logprobs=(-1.0, None)), "another shape"),
        (reply_of(ids=("5", 6)), "another shape"),
        (reply_of(padding="x" * 200_000), "more than"),
    ],
)
async def test_a_reply_that_is_none_is_refused(reply, words):
    async with raw_server(lambda path, body: http(reply)) as server:
        sampler = build_sampler(server.url)
        with pytest.raises(SamplerError, match=words):
            await sampler.sample([5], SamplingParams(2))
        await sampler.server.close()
        assert len(server.requests) == 2  # trying again would bring the same


@pytest.mark.parametrize("trouble", [CLOSE, http(b"{", 200), http({"error": "x"}, 503)])
async def test_passing_trouble_is_tried_again(trouble):
    answers = [trouble]

    def answer(path, body):
        if path == "/v1/completions" and answers:
            return answers.pop()
        return http({**reply_of(), "weight_version": "default"})

    async with raw_server(answer) as server:
        sampler = build_sampler(server.url)
        assert (await sampler.sample([5], SamplingParams(2))).token_ids == (5, 6)
        await sampler.server.close()


async def test_a_server_that_never_answers_is_abandoned(stub):
    stub.hung.add("/v1/completions")
    sampler = build_sampler(stub.url, tries=2, timeout=0.2)
    with pytest.raises(EngineLostError, match=r"did not answer in time .*2 tries"):
        await sampler.sample(PROMPTS[0], SamplingParams(2))
    await sampler.server.close()


async def test_a_server_without_its_development_endpoints_is_named():
    stub = build_stub(dev_mode=False)
    with stub_in_thread(stub) as url:
        server = VllmServer(url)
        with pytest.raises(SamplerError, match="VLLM_SERVER_DEV_MODE=1"):
            await server.weight_version()
        await server.close()


@pytest.mark.parametrize("prompt", [[], [400], [-1]])
async def test_prompts_that_cannot_be_run_are_refused_before_they_are_sent(prompt):
    sampler = build_sampler("http://127.0.0.1:1")
    with pytest.raises(SamplerError, match=r"outside 0\.\.399"):
        await sampler.sample(prompt, SamplingParams(2))


async def test_a_sample_counts_the_tokens_that_the_server_held(stub):
    sampler = build_sampler(stub.url)
    shared = list(range(2, 42))
    first = await sampler.sample([*shared, 50], SamplingParams(1))
    again = await sampler.sample([*shared, 60], SamplingParams(1))
    assert (first.cached_tokens, again.cached_tokens) == (0, len(shared))
    await sampler.server.close()
