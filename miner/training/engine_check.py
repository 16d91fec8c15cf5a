"""A look at vLLM before anything is played: does it hold the trainer's weights?"""

from collections.abc import Callable
from contextlib import suppress
from statistics import fmean
from typing import Any

import numpy as np

from miner.background_loop import BackgroundLoop
from miner.inference.engines import GenerationEngine
from miner.inference.sampler import EngineLostError, Sample, SamplingParams
from miner.learning.forest import Row
from miner.rollout.chat_template import FIRST_TURN
from miner.rollout.completions import sample_all
from miner.rollout.renderer import ChatRenderer
from miner.training.playing import repeat_until_held

REPLIES, TOKENS = 4, 16

WIDEST_GAP = 0.5
"""Mean |log p| difference in nats: numerics leave a few hundredths, other weights several."""


def check_engine(
    engine: GenerationEngine,
    renderer: ChatRenderer,
    loop: BackgroundLoop,
    logprobs_of: Callable[[list[Row]], list[Any]],
    gather: Callable[[float], list[float]],
    temperature: float,
) -> float:
    """Sample a few replies and score them with the trainer's model; collective.

    A base of which the engine has lost or misplaced weights would forfeit its games, and so would
    each candidate: the run would learn for hours and end with its start.

    Args:
        logprobs_of, gather: the trainer's and the ranks'.
        temperature: of both.

    Returns: the gap, the mean |log p| difference of the rank where it is widest.
    Raises: `EngineLostError` on all ranks where it is above `WIDEST_GAP`; what
        `repeat_until_held` raises, `SamplerError`.
    """
    prompt = renderer.encode(renderer.render(FIRST_TURN[-1:]))
    params = SamplingParams(TOKENS, temperature)

    def sampled() -> list[Sample] | None:
        with suppress(EngineLostError):
            return sample_all(engine.sampler, loop, [prompt] * REPLIES, params)
        return None

    samples = repeat_until_held(engine, sampled)
    if samples is None:
        raise EngineLostError("vLLM answered none of the first requests, and does not show why")
    rows = [
        Row(
            np.array([*prompt, *sample.token_ids]),
            np.arange(len(prompt), len(prompt) + len(sample.token_ids)),
        )
        for sample in samples
    ]
    gaps = [
        abs(own - float(found))
        for sample, line in zip(samples, logprobs_of(rows), strict=True)
        for own, found in zip(sample.logprobs, line, strict=True)
    ]
    gap = float(np.max(gather(fmean(gaps))))  # a NaN counts as the widest
    if not gap <= WIDEST_GAP:
        raise EngineLostError(
            f"vLLM gives sampled tokens log-probabilities that differ by {gap:.2f} nats on average "
            "from the trainer's: it does not hold the trainer's weights"
        )
    return gap
