"""Samples of a vLLM engine in this process: `python -m tests.real_vllm.colocated_program OUT`.

Runs with the Python that has vLLM; the results are checked by tests that do not.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from vllm import LLM

from miner.background_loop import BackgroundLoop
from miner.inference.merged_weights import weights_on_cpu
from miner.inference.sampler import SamplingParams
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.inference.vllm.reload import reloading
from tests.real_vllm.models import LONG_PROMPTS, model, save_model
from tests.rollout.sampling import PROMPTS, RULES
from tests.vllm_surface import installed_misfits


async def all_prompts(
    sampler: VllmColocatedSampler, temperature: float, prompts: list[list[int]] = PROMPTS
) -> list[dict[str, Any]]:
    """One reply to each prompt, all at once."""
    asked = SamplingParams(6, temperature)
    samples = await asyncio.gather(*(sampler.sample(prompt, asked) for prompt in prompts))
    return [asdict(sample) for sample in samples]


async def leave(sampler: VllmColocatedSampler, running: Callable[[], bool]) -> None:
    """Ask for long replies and wait for none."""
    asked = SamplingParams(1000, 1.0)
    tasks = [asyncio.ensure_future(sampler.sample([5], asked)) for _ in range(8)]
    while not running():  # noqa: ASYNC110 (it sets no event)
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    out = Path(sys.argv[1])
    torch.set_num_threads(1)  # as a run's settings may have it, of more threads that there could be
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = LLM(
        model=str(save_model(out / "base", tied=False)),
        dtype="float32",
        max_model_len=RULES.context,
        max_num_batched_tokens=1024,
        gpu_memory_utilization=0.05,
        logprobs_mode="processed_logprobs",
        enforce_eager=True,
    )
    sampler = VllmColocatedSampler(llm.llm_engine, RULES)
    said: dict[str, Any] = {"misfits": list(installed_misfits())}
    with BackgroundLoop() as loop:
        said["base"] = loop.run(all_prompts(sampler, 1.0))
        said["in parts"] = loop.run(all_prompts(sampler, 1.0, LONG_PROMPTS))
        said["cooler"] = loop.run(all_prompts(sampler, 0.7))
        loop.run(leave(sampler, llm.llm_engine.has_unfinished_requests))
        sampler.settle()
        for seed in (1, 2):
            with reloading(llm):
                for one in weights_on_cpu(model(seed, tied=False)).items():
                    llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(
                        [one]
                    )
            said[f"cache emptied {seed}"] = llm.reset_prefix_cache()
            said[f"weights {seed}"] = loop.run(all_prompts(sampler, 1.0))
    sampler.close()
    (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
