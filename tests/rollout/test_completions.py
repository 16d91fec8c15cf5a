"""Samples of many prompts at once."""

import asyncio

import pytest

from miner.background_loop import BackgroundLoop
from miner.inference.sampler import SamplerError, SamplingParams
from miner.rollout.completions import sample_all


class OneFails:
    """Fails at one prompt; the others' samples never come."""

    def __init__(self):
        self.ended = []

    async def sample(self, prompt_ids, params):
        if prompt_ids == (1,):
            raise SamplerError("no room")
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(prompt_ids)


def test_a_prompt_that_fails_ends_the_requests_of_the_others():
    """A trainer changes the weights under them next."""
    sampler = OneFails()
    with BackgroundLoop() as loop, pytest.raises(SamplerError, match="no room"):
        sample_all(sampler, loop, [(0,), (1,), (2,)], SamplingParams(6))
    assert sorted(sampler.ended) == [(0,), (2,)]
