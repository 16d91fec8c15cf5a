"""Loads a model folder and makes it a policy, in the grader's dtype where that is possible."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from miner.config.contract import FIRST_FORMAT_DTYPE
from miner.evaluation.policies import SamplerPolicy
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.model_folder import load_model_folder


@contextmanager
def model_policy(
    path: Path,
    *,
    name: str,
    temperature: float,
    max_reply_tokens: int,
    max_sessions: int,
    dtype: str | None = None,
    served: str = FIRST_FORMAT_DTYPE,
) -> Iterator[SamplerPolicy]:
    """A policy over the model in `path`.

    Args:
        max_sessions: episodes that may be under way at once.
        dtype: name of torch's; None: `served` on a GPU, float32 on a CPU.
        served: dtype in which the model is graded.

    Raises: `ConfigurationError` when the folder holds no model that can be loaded.
    """
    on_gpu = torch.cuda.is_available()
    loaded = load_model_folder(
        path,
        getattr(torch, dtype or (served if on_gpu else "float32")),
        "cuda" if on_gpu else None,
    )
    params = SamplingParams(max_reply_tokens, temperature)
    with TransformersSampler(
        loaded.model, loaded.chat.tokenizer, max_sessions=max_sessions
    ) as sampler:
        yield SamplerPolicy(name, sampler, loaded.chat.renderer, params)
