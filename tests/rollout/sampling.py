"""Requests and expected replies that tests of samplers share."""

import math

import torch

from miner.inference.sampler import SamplingParams
from miner.inference.vllm.replies import ReplyRules
from tests.builders import build_qwen3

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33], [5, 6, 7, 8, 9, 10, 11], [40]]
RULES = ReplyRules(frozenset({1}), vocabulary=400, context=1024)


def build_endless_qwen3(**config):
    """A model that never ends a reply by itself."""
    model = build_qwen3(**config)
    model.lm_head.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([1]), -math.inf)
    )
    return model


@torch.no_grad()
def generated(model, prompt, max_new_tokens=12):
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
    )
    return tuple(output[0, len(prompt) :].tolist())
