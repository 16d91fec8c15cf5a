"""A small model on disk whose defaults would bend vLLM's sampling, and what it answers itself."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3ForCausalLM

from tests.builders import build_qwen3, logprobs_of, save_base

PUSHES = 3
LONG_PROMPTS = [[5 + (7 * i + j) % 300 for i in range(400)] for j in range(4)]
"""More tokens than an engine that takes 1,024 at once: one is cut into parts."""
POOL_PROMPTS = [[11, 12, 13, 14, 15, 16, 17, 18], [30 + 7 * i for i in range(40)]]

TOLERANCE = 2e-4
"""Between two implementations of one float32 network; other weights are off by more than 0.1."""
BFLOAT16_TOLERANCE = 0.3
"""In nats on average; those of other weights are off by more than 1."""


def model(seed: int = 0, *, tied: bool = True) -> Qwen3ForCausalLM:
    """Two models of different seeds differ in every weight."""
    return build_qwen3(
        seed=seed, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=tied
    )


def save_model(folder: Path, *, tied: bool = True) -> Path:
    """The model of seed 0, and defaults that no request may inherit."""
    saved = model(tied=tied)
    saved.generation_config = GenerationConfig(
        do_sample=True, top_k=3, top_p=0.5, repetition_penalty=1.5, temperature=0.2,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return save_base(folder, saved)


def assert_sampled_from(
    of: Qwen3ForCausalLM,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    temperature: float = 1.0,
) -> None:
    """Each token's logprob is that of the model's softmax at `temperature`, and of nothing else."""
    assert token_ids
    expected = logprobs_of(of, prompt, token_ids, temperature)
    gaps = [abs(found - of_model) for found, of_model in zip(logprobs, expected, strict=True)]
    assert max(gaps) <= TOLERANCE, gaps


def assert_replies_of(folder: Path, replies: list[tuple[list[int], list[float]]]) -> float:
    """They are the greedy ones to `POOL_PROMPTS`, with the logprobs of transformers; returns by how
    much these differ at most, in nats, means of a reply."""
    gaps = list[float]()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    for prompt, (ids, logprobs) in zip(POOL_PROMPTS, replies, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        odds = logits.float().log_softmax(-1)
        expected = odds[range(len(ids)), ids]
        assert odds.std() > 1  # tokens are told apart
        gaps.append(float((expected - torch.tensor(logprobs)).abs().mean()))
        assert gaps[-1] < BFLOAT16_TOLERANCE, gaps
        assert (odds.max(-1).values - expected).mean() < BFLOAT16_TOLERANCE  # replies are greedy
    return max(gaps)
