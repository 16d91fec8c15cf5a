"""The sampler that steps an engine, over an engine double with vLLM's calls."""

import asyncio
import threading
from contextlib import closing

import pytest

from miner.inference.sampler import EngineLostError, SamplerError, SamplingParams
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from tests.builders import build_qwen3
from tests.rollout.sampling import PROMPTS, RULES
from tests.stub_vllm.engine_double import EngineDouble
from tests.vllm_surface import ENGINE_CALLS, SAMPLING, Call, misfits


@pytest.fixture
def engine():
    return EngineDouble(build_qwen3())


@pytest.fixture
def sampler(engine):
    sampler = VllmColocatedSampler(engine, RULES, make_params=dict)
    yield sampler
    sampler.close()


async def test_a_short_reply_does_not_wait_for_a_long_one(engine):
    """The engine's second step waits until the short one's caller has it."""
    both, answered, step = threading.Event(), threading.Event(), engine.step

    def second_waits():
        assert not engine.widths or answered.wait(60)
        return step()

    engine.step = second_waits
    parts = {"make_params": dict, "prepare_thread": both.wait}
    with closing(VllmColocatedSampler(engine, RULES, **parts)) as sampler:
        limits = SamplingParams(20), SamplingParams(1)
        long, short = (asyncio.ensure_future(sampler.sample(PROMPTS[0], each)) for each in limits)
        await asyncio.sleep(0)  # both are asked for
        both.set()
        await short
        assert not long.done()
        answered.set()
        await long
    assert engine.widths[0] == 2


async def test_requests_of_many_episodes_run_together(sampler, engine):
    await asyncio.gather(*(sampler.sample(PROMPTS[0], SamplingParams(8)) for _ in range(40)))
    assert max(engine.widths) == 40


async def test_a_request_without_a_waiting_caller_is_aborted(sampler, engine):
    request = asyncio.ensure_future(sampler.sample(PROMPTS[0], SamplingParams(900, 0.9)))
    await asyncio.to_thread(engine.stepped.wait)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await sampler.sample(PROMPTS[1], SamplingParams(1))
    assert engine.aborted == ["0"]
    assert not engine.has_unfinished_requests()


async def test_a_failed_engine_fails_every_request_and_all_later_ones(sampler, engine):
    engine.fails_at = 2
    asked = [sampler.sample(prompt, SamplingParams(400, 0.9)) for prompt in PROMPTS]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert failures
    assert all(isinstance(failure, EngineLostError) for failure in failures)
    assert "device-side assert" in str(failures[0])
    engine.fails_at = None
    with pytest.raises(EngineLostError, match="device-side assert"):
        await sampler.sample(PROMPTS[0], SamplingParams(1))


@pytest.mark.parametrize(
    ("garble", "words"),
    [
        (lambda said: setattr(said, "logprobs", None), "no logprob"),
        (lambda said: said.logprobs[0].clear(), "without the drawn id"),
        (lambda said: setattr(said, "finish_reason", "abort"), "'abort'"),
        (lambda said: said.token_ids.clear(), "no logprob|0 ids"),
    ],
)
async def test_what_no_engine_may_answer_is_refused(sampler, engine, garble, words):
    engine.garble = garble
    with pytest.raises(SamplerError, match=words):
        await sampler.sample(PROMPTS[0], SamplingParams(2))


async def test_a_prompt_that_the_engine_refuses_fails_alone(sampler):
    fine = asyncio.ensure_future(sampler.sample(PROMPTS[0], SamplingParams(50, 0.9)))
    with pytest.raises(SamplerError, match="refused a prompt: a prompt of 600 tokens"):
        await sampler.sample([5] * 600, SamplingParams(2))
    assert (await fine).token_ids


def test_the_double_takes_the_calls_that_vllm_is_checked_for(engine):
    assert list(misfits(ENGINE_CALLS, engine)) == []


def test_a_call_that_does_not_fit_is_named(engine):
    calls = (Call("x", "add_request", 3, ("colour",)), Call("x", "fly"), Call("x", "step", 1))
    said = list(misfits(calls, engine))
    assert len(said) == 3
    assert "colour" in said[0]
    assert "x.fly does not exist" in said[1]


def test_every_option_is_in_the_table_that_vllm_is_checked_for():
    assert set(RULES.options(4, 1.0, seed=0)) <= set(SAMPLING)


async def test_a_sample_counts_the_tokens_that_the_engine_held(sampler):
    shared = list(range(2, 42))
    first = await sampler.sample([*shared, 50], SamplingParams(1))
    again = await sampler.sample([*shared, 60], SamplingParams(1))
    assert (first.cached_tokens, again.cached_tokens) == (0, len(shared))
