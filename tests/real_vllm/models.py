"""A small model on disk whose defaults would bend vLLM's sampling, and what it answers itself."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import GenerationConfig, Qwen3ForCausalLM

from tests.builders import build_qwen3, logprobs_of, save_base

PUSHES = 3
LONG_PROMPTS = [[5 + (7 * i + j) % 300 for i in range(400)] for j in range(4)]
"""More tokens than an engine that takes 1,024 at once: one is cut into parts."""
POOL_PROMPTS = [[11, 12, 13, 14, 15, 16, 17, 18], [30 + 7 * i for i in range(40)]]

TOLERANCE = 2e-4
"""Between two implementations of one float32 network; other weights are off by more than 0.1."""


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
    assert list(logprobs) == pytest.approx(expected, abs=TOLERANCE)
