"""The transformers sampler with a model that fails, and prompts that it cannot run."""

import asyncio

import pytest
import torch

from miner.inference.sampler import SamplerError, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from tests.builders import build_qwen3, build_tokenizer
from tests.rollout.sampling import GREEDY, PROMPTS, build_endless_qwen3, generated


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


async def test_failing_model_fails_the_requests_in_flight_only(tokenizer):
    model = build_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        held = await sampler.sample(PROMPTS[0], GREEDY, session=1)

        def fail(*_):
            raise RuntimeError("out of memory")

        hook = model.register_forward_pre_hook(fail)
        results = await asyncio.gather(
            *(sampler.sample(p, GREEDY, session=i) for i, p in enumerate(PROMPTS)),
            return_exceptions=True,
        )
        hook.remove()
        assert all(isinstance(r, SamplerError) and "out of memory" in str(r) for r in results)
        prompt = [*PROMPTS[0], *held.token_ids, 50]
        assert (await sampler.sample(prompt, GREEDY, session=1)).token_ids == generated(
            model, prompt
        )


async def test_weights_that_give_nan_are_an_error_not_a_token(tokenizer):
    model = build_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        with torch.no_grad():
            model.model.norm.weight.fill_(float("nan"))
        with pytest.raises(SamplerError, match="not finite"):
            await sampler.sample([5, 6], SamplingParams(1))


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "empty"), ([5, 400], "outside"), ([5] * 1024, "no room")]
)
async def test_prompts_that_cannot_be_run_harm_nobody_else(prompt, message, tokenizer):
    model = build_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        other = asyncio.create_task(sampler.sample(PROMPTS[0], GREEDY))
        with pytest.raises(SamplerError, match=message):
            await sampler.sample(prompt, GREEDY)
        assert (await other).token_ids == generated(model, PROMPTS[0])


async def test_reply_ends_where_the_context_ends(tokenizer):
    model = build_endless_qwen3(max_position_embeddings=16)
    with TransformersSampler(model, tokenizer) as sampler:
        sample = await sampler.sample([5] * 13, SamplingParams(max_tokens=50))
    assert (len(sample.token_ids), sample.finish_reason) == (3, "length")
