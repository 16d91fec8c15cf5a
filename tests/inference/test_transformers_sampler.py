"""The transformers sampler against plain forwards and `model.generate`, and its failures."""

import asyncio
import logging
import threading
from collections import Counter
from itertools import chain
from unittest.mock import Mock

import pytest
import torch
from scipy.stats import chisquare
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from miner.inference.sampler import SamplerError, SamplingParams
from miner.inference.transformers import sampler as transformers_sampler
from miner.inference.transformers.forward import CachedForward
from miner.inference.transformers.sampler import TransformersSampler
from tests.builders import build_llama, build_qwen3, build_tokenizer, logprobs_of, next_logits
from tests.rollout.sampling import GREEDY, PROMPTS, build_endless_qwen3, generated


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def build_gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=400, n_embd=32, n_layer=2, n_head=2, n_positions=256, initializer_range=0.2,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def build_mistral():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.2, sliding_window=4,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


def build_eager_qwen3():
    model = build_qwen3()
    model.set_attn_implementation("eager")
    return model


async def ask_all(sampler, prompts, params, sessions=None):
    sessions = sessions or [None] * len(prompts)
    return await asyncio.gather(
        *(sampler.sample(p, params, session=s) for p, s in zip(prompts, sessions, strict=True))
    )


async def converse(sampler, session, max_tokens=3):
    """A conversation with environment tokens of changing length; returns everything sampled."""
    ids, sampled = [5 + session % 7, *range(20, 50 + session % 5 * 9)], []
    for turn in range(2 + session % 4):
        sample = await sampler.sample(ids, SamplingParams(max_tokens), session=session)
        sampled.append(sample)
        ids = [*ids, *sample.token_ids, *range(50, 52 + (session + turn) % 4)]
    await sampler.end_session(session)
    return sampled


@pytest.mark.parametrize(
    "build", [build_qwen3, build_llama, build_gpt2, build_eager_qwen3, build_mistral]
)
async def test_greedy_replies_are_those_of_generate(build, tokenizer):
    model = build()
    with TransformersSampler(model, tokenizer) as sampler:
        samples = await ask_all(sampler, PROMPTS, GREEDY)
    assert [s.token_ids for s in samples] == [generated(model, p) for p in PROMPTS]
    assert all(s.logprobs == (0.0,) * len(s.token_ids) for s in samples)


async def test_replies_end_on_eos_or_at_the_limit(tokenizer):
    model = build_qwen3()
    first = generated(model, PROMPTS[0])[2]
    model.generation_config.eos_token_id = [1, first]
    with TransformersSampler(model, tokenizer) as sampler:
        stopped, cut = await asyncio.gather(
            sampler.sample(PROMPTS[0], GREEDY),
            sampler.sample(PROMPTS[0], SamplingParams(max_tokens=2, temperature=0.0)),
        )
    assert (stopped.finish_reason, len(stopped.token_ids), stopped.token_ids[-1]) == (
        "stop", 3, first,
    )  # fmt: skip
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 2)


async def test_sampled_ids_follow_the_softmax(tokenizer):
    model = build_qwen3()
    params, draws = SamplingParams(max_tokens=1, temperature=1.5), 2000
    with TransformersSampler(model, tokenizer, seed=3) as sampler:
        samples = await ask_all(sampler, [PROMPTS[0]] * draws, params)
    expected = torch.softmax(next_logits(model, PROMPTS[0]) / 1.5, -1) * draws
    seen = Counter(sample.token_ids[0] for sample in samples)
    common = [i for i, n in enumerate(expected.tolist()) if n >= 5]
    observed = [seen[i] for i in common]
    frequencies = [float(expected[i]) for i in common]
    observed.append(draws - sum(observed))
    frequencies.append(draws - sum(frequencies))
    assert len(common) > 20
    assert chisquare(observed, frequencies).pvalue > 0.001


async def test_multi_turn_with_cache_equals_without(tokenizer, caplog):
    """Models with windows share no states; the same weights without the window must agree."""
    cached_model, plain_model = build_mistral(), build_mistral()
    cached_model.config.sliding_window = None
    plain_model.config.sliding_window = 10_000
    with caplog.at_level(logging.WARNING), TransformersSampler(plain_model, tokenizer) as plain:
        expected = await asyncio.gather(*(converse(plain, s) for s in range(12)))
    assert "the model's own cache" in caplog.text
    with TransformersSampler(cached_model, tokenizer) as cached:
        actual = await asyncio.gather(*(converse(cached, s) for s in range(12)))
    for left, right in zip(chain(*actual), chain(*expected), strict=True):
        assert left.token_ids == right.token_ids
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


@pytest.mark.parametrize("max_sessions", [1, 3])
async def test_samples_depend_on_seed_and_arrival_but_not_on_who_shares_a_batch(
    max_sessions, tokenizer
):
    model = build_qwen3()

    async def run(seed, slots):
        with TransformersSampler(model, tokenizer, max_sessions=slots, seed=seed) as sampler:
            samples = await asyncio.gather(*(converse(sampler, s) for s in range(10)))
        return [[s.token_ids for s in c] for c in samples]

    expected = await run(seed=5, slots=64)
    assert await run(seed=5, slots=max_sessions) == expected
    assert await run(seed=6, slots=64) != expected


async def test_a_sample_counts_the_tokens_that_were_held(tokenizer):
    model, shared = build_qwen3(), list(range(2, 42))
    with TransformersSampler(model, tokenizer) as sampler:
        first = await sampler.sample([*shared, 50], SamplingParams(1), session=1)
        again = await sampler.sample([*shared, 50, 51, 52], SamplingParams(1), session=1)
        other = await sampler.sample([*shared, 60], SamplingParams(1), session=2)
    held = [sample.cached_tokens for sample in (first, again, other)]
    assert held == [0, len(shared) + 1, len(shared)]


async def test_one_session_may_ask_twice_at_once(tokenizer):
    model = build_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        samples = await ask_all(sampler, PROMPTS, GREEDY, sessions=[7] * len(PROMPTS))
    assert [s.token_ids for s in samples] == [generated(model, p) for p in PROMPTS]


async def test_conversations_that_go_on_at_once_stay_in_step(tokenizer):
    model, shapes = build_qwen3(), []
    model.register_forward_pre_hook(
        lambda *call: shapes.append(tuple(call[2]["input_ids"].shape)), with_kwargs=True
    )

    async def talk(session):
        ids = [5 + session, 6, 7, 8]
        for _ in range(3):
            sample = await sampler.sample(ids, SamplingParams(1), session=session)
            ids = [*ids, *sample.token_ids, 9, 10]

    with TransformersSampler(model, tokenizer) as sampler:
        shapes.clear()
        await asyncio.gather(*(talk(session) for session in range(6)))
    assert shapes == [(6, 4), (6, 3), (6, 3)]


async def test_callers_that_ask_one_by_one_share_forwards(tokenizer, monkeypatch):
    """As behind a server, which answers one after the other."""
    monkeypatch.setattr(transformers_sampler, "QUIET_S", 2.0)
    monkeypatch.setattr(transformers_sampler, "GATHERING_S", 60.0)
    model, rows = build_qwen3(), []
    model.register_forward_pre_hook(
        lambda *call: rows.append(call[2]["input_ids"].shape[0]), with_kwargs=True
    )

    async def talk(session):
        ids = [5 + session, 6, 7, 8]
        for _ in range(4):
            sample = await sampler.sample(ids, SamplingParams(1), session=session)
            ids = [*ids, *sample.token_ids, 9, 10]
            await asyncio.sleep(0.02 * session)

    with TransformersSampler(model, tokenizer) as sampler:
        rows.clear()
        await asyncio.gather(*(talk(session) for session in range(8)))
    assert rows == [8] * 4


async def test_request_joins_while_another_decodes(tokenizer):
    """The long request waits in its third step for the short one, which then ends first."""
    model = build_endless_qwen3()
    under_way, joined, batches, order = asyncio.Event(), threading.Event(), [], []
    loop = asyncio.get_running_loop()

    def note(*call):
        batches.append(call[2]["input_ids"].shape[0])
        if len(batches) == 3:
            loop.call_soon_threadsafe(under_way.set)
            joined.wait(60)

    async def ask(name, tokens):
        await sampler.sample([5, 6], SamplingParams(tokens))
        order.append(name)

    with TransformersSampler(model, tokenizer) as sampler:
        model.register_forward_pre_hook(note, with_kwargs=True)
        long = asyncio.create_task(ask("long", 20))
        await under_way.wait()
        short = asyncio.create_task(ask("short", 4))
        await asyncio.sleep(0)
        joined.set()
        await asyncio.gather(long, short)
    assert order == ["short", "long"]
    assert max(batches) == 2


async def test_event_loop_lives_while_the_model_works(tokenizer):
    model, alive = build_qwen3(), threading.Event()
    loop = asyncio.get_running_loop()
    answered = []

    def ask_the_loop(*_):
        loop.call_soon_threadsafe(alive.set)
        answered.append(alive.wait(30))

    with TransformersSampler(model, tokenizer) as sampler:
        hook = model.register_forward_pre_hook(ask_the_loop)
        await sampler.sample([5, 6], SamplingParams(max_tokens=1))
        hook.remove()
    assert answered == [True]


async def test_runs_in_evaluation_mode_and_restores_every_module(tokenizer):
    model = build_qwen3(attention_dropout=0.5)
    expected = generated(model, PROMPTS[0])
    model.train()
    model.gradient_checkpointing_enable()
    model.model.norm.eval()
    modes = [module.training for module in model.modules()]
    with TransformersSampler(model, tokenizer) as sampler:
        assert [module.training for module in model.modules()] == modes
        sample = await sampler.sample(PROMPTS[0], GREEDY)
        assert [module.training for module in model.modules()] == modes
    assert sample.token_ids == expected
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("drop", ["invalidate", "version"])
async def test_new_weights_drop_what_is_held(drop, tokenizer):
    model = build_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        old = await sampler.sample(PROMPTS[0], GREEDY, session=1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
        if drop == "version":
            sampler.weight_version = 4
        else:
            sampler.invalidate()
        prompt = [*PROMPTS[0], *old.token_ids, 50]
        new = await sampler.sample(prompt, SamplingParams(1), session=1)
    assert new.logprobs == pytest.approx(logprobs_of(model, prompt, new.token_ids), abs=1e-4)
    assert (old.weight_version, new.weight_version) == (0, 4 if drop == "version" else 0)


async def test_ended_session_works_no_more_once_end_session_returns(tokenizer):
    model = build_endless_qwen3()
    model.train()
    running, loop = asyncio.Event(), asyncio.get_running_loop()
    with TransformersSampler(model, tokenizer) as sampler:

        def note(*_):
            loop.call_soon_threadsafe(running.set)

        hook = model.register_forward_pre_hook(note)
        request = asyncio.create_task(sampler.sample([5, 6], SamplingParams(900), session=1))
        await running.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await sampler.end_session(1)
        assert model.training
        steps = []
        model.register_forward_pre_hook(lambda *_: steps.append(1))
        await sampler.sample([5, 6], SamplingParams(1), session=2)
        assert len(steps) == 1
        hook.remove()


async def test_cancelled_request_stops_decoding(tokenizer):
    model = build_endless_qwen3()
    running, loop, steps = asyncio.Event(), asyncio.get_running_loop(), []

    def note(*_):
        steps.append(1)
        loop.call_soon_threadsafe(running.set)

    with TransformersSampler(model, tokenizer) as sampler:
        hook = model.register_forward_pre_hook(note)
        request = asyncio.create_task(sampler.sample([5, 6], SamplingParams(900)))
        await running.wait()
        request.cancel()
        await sampler.sample([5, 6], SamplingParams(4))
    hook.remove()
    assert len(steps) < 900


async def test_end_session_aborts_a_waiting_request(tokenizer):
    model = build_endless_qwen3()
    with TransformersSampler(model, tokenizer) as sampler:
        request = asyncio.create_task(sampler.sample([5, 6], SamplingParams(1000), session=1))
        await asyncio.sleep(0)
        await sampler.end_session(1)
        with pytest.raises(SamplerError, match="session 1 ended"):
            await request


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


async def test_a_cache_that_cannot_grow_leaves_no_slot_taken(tokenizer, monkeypatch):
    """The copy of a shared beginning is where memory runs out first."""
    model = build_qwen3()
    with TransformersSampler(model, tokenizer, max_sessions=1) as sampler:
        monkeypatch.setattr(
            CachedForward, "share", Mock(side_effect=[RuntimeError("out of memory")])
        )
        with pytest.raises(SamplerError, match="out of memory"):
            await sampler.sample(PROMPTS[0], GREEDY)
        assert sampler._engine._table.lease(None, PROMPTS[0]) is not None


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
async def test_prompts_that_cannot_be_run_harm_no_others(prompt, message, tokenizer):
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
