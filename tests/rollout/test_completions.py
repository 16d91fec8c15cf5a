"""Completions for rollout functions of others, on each engine, and the documented example."""

import asyncio
import re
from pathlib import Path

import pytest
import torch

from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.inference.sampler import SamplerError, SamplingParams
from miner.rollout.completions import RolloutCompletions, sample_all
from tests.builders import build_qwen3, build_tokenizer, logprobs_of
from tests.rollout.engines import ENGINES, sampler_on


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


CHAT = [{"role": "user", "content": "Which number comes next?"}]


@pytest.fixture(params=ENGINES)
def complete(request):
    tokenizer = build_tokenizer()
    engine = sampler_on(request.param, build_qwen3(), tokenizer)
    with BackgroundLoop() as loop:
        sampler = loop.run(engine.__aenter__())
        yield RolloutCompletions(sampler, tokenizer, loop, SamplingParams(6))
        loop.run(engine.__aexit__(None, None, None))


def test_each_prompt_gets_its_completion_with_the_logprobs_of_its_tokens(complete):
    model, tokenizer = build_qwen3(), build_tokenizer()
    rows = complete([CHAT, "a bid of 3", CHAT], overrides={"temperature": 0.7})
    chat = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    prompts = [tokenizer(text)["input_ids"] for text in (chat, "a bid of 3", chat)]
    assert [row["prompt_ids"] for row in rows] == prompts
    for row in rows:
        ids = row["completion_ids"]
        expected = logprobs_of(model, row["prompt_ids"], ids, 0.7)
        assert row["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert row["text"] == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_call_may_change_length_and_temperature(complete):
    first, second = (
        complete([CHAT], overrides={"temperature": 0.0, "max_tokens": 3}) for _ in range(2)
    )
    assert first[0]["completion_ids"] == second[0]["completion_ids"]
    assert len(first[0]["completion_ids"]) <= 3


def test_a_text_can_be_asked_as_a_chat(complete):
    [asked], [chat] = complete([CHAT[0]["content"]], as_chat=True), complete([CHAT])
    assert asked["prompt_ids"] == chat["prompt_ids"]


def test_what_cannot_be_done_is_refused(complete):
    with pytest.raises(ConfigurationError, match="'top_p' would change the distribution"):
        complete([CHAT], overrides={"top_p": 0.9})
    with pytest.raises(ConfigurationError, match="as_chat=False needs texts"):
        complete([CHAT], as_chat=False)


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "rollout_functions.md"


def test_the_documents_example_trains(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    example = {}
    exec(compile(code, str(DOCUMENT), "exec"), example)
    model = build_qwen3()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    trainer = example["train"](model, build_tokenizer(), str(tmp_path), steps=2)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert trainer.state.global_step == 2
    assert all(reward < 0 for reward in rewards)
    assert rewards
    assert not torch.equal(before, after)
