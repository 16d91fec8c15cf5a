"""Attention without copies of keys and values: the same logits, and nothing is copied."""

import pytest
import torch
from transformers.integrations import sdpa_attention

from miner.inference.transformers.forward import CachedForward, PlainForward, evaluation_mode
from miner.inference.transformers.grouped_attention import GROUPED, group_attention
from tests.builders import build_qwen3
from tests.inference.test_batching import build_row


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_logits_are_those_of_transformers_own(dtype, most, monkeypatch):
    model = build_qwen3().to(dtype)
    config = model.config
    assert config.num_key_value_heads < config.num_attention_heads
    ids = [list(range(3, 3 + length)) for length in (7, 90)]

    def logits(forward):
        rows = [build_row(len(each), slot=slot) for slot, each in enumerate(ids)]
        with evaluation_mode(model):
            first = forward.logits(rows)
            for row in rows:
                row.ids = [*row.ids, 5]
            return torch.stack([first, forward.logits(rows)])

    expected = [logits(CachedForward(model)), logits(PlainForward(model))]
    group_attention(model)
    assert config._attn_implementation == GROUPED

    def refused(*args):
        raise AssertionError("keys or values are copied")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", refused)
    for found, before in zip(
        [logits(CachedForward(model)), logits(PlainForward(model))], expected, strict=True
    ):
        torch.testing.assert_close(found, before, rtol=0, atol=most)


def test_another_implementation_stays():
    model = build_qwen3()
    model.set_attn_implementation("eager")
    group_attention(model)
    assert model.config._attn_implementation == "eager"
