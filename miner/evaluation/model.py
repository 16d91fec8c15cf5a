"""Loads a model folder and makes it a policy, in the grader's dtype where that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from miner.environments.errors import ConfigurationError
from miner.evaluation.policies import SamplerPolicy
from miner.rollout.renderer import ChatRenderer, TokenizerError
from miner.rollout.sampler import SamplingParams
from miner.rollout.transformers_sampler import TransformersSampler


@contextmanager
def model_policy(
    path: Path, *, name: str, temperature: float, max_reply_tokens: int, max_sessions: int
) -> Iterator[SamplerPolicy]:
    """A policy over the model in `path`: float16 on a GPU (as graded), float32 on a CPU.

    Args:
        max_sessions: episodes that may be under way at once.

    Raises: `ConfigurationError` when the folder holds no model that can be loaded.
    """
    logging.disable_progress_bar()
    on_gpu = torch.cuda.is_available()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float16 if on_gpu else torch.float32,
            device_map="cuda" if on_gpu else None,
            local_files_only=True,
        )
        renderer = ChatRenderer(tokenizer)
    except (OSError, ValueError, TokenizerError) as error:
        raise ConfigurationError(f"the model in {path} cannot be loaded: {error}") from error
    params = SamplingParams(max_reply_tokens, temperature)
    with TransformersSampler(model, tokenizer, max_sessions=max_sessions) as sampler:
        yield SamplerPolicy(name, sampler, renderer, params)
