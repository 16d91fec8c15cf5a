"""TRL's first OpenEnv example, run by today's trainer and on OpenEnv's own server.

    make setup-openenv && .venv-openenv/bin/python examples/train_echo_trl.py

The rollout function and the reward are the ones of that example; `legacy_rollout` makes the
function one of today's. OpenEnv's client is asynchronous now, hence `.sync()`; completions come
from the trained model itself (with a `vllm serve` they come from `miner.agents.VLLMClient(URL)`);
and the model is a tiny one that is made here, or `--model`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from openenv.core import GenericEnvClient
from transformers import AutoModelForCausalLM, AutoTokenizer, ProgressCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from examples.code_agent_environment import Rewards
from examples.train_openenv import APP, ASKED, build_base
from miner.agents import legacy_rollout
from miner.agents.client import SamplerClient
from miner.background_loop import BackgroundLoop
from miner.environments.openenv.hosting import LocalApp, start
from miner.heavy_imports import quiet_libraries
from miner.inference.transformers.sampler import TransformersSampler

GROUP = 8


def rollout_with(client: SamplerClient, sampler: TransformersSampler, environment: Any) -> Any:
    """The example's rollout function."""

    def rollout_func(prompts: Any, args: Any, processing_class: Any) -> dict[str, list[Any]]:
        sampler.invalidate()  # the weights have changed
        # 1. completions, `num_generations` of each prompt
        made = client.generate(
            prompts=prompts,
            n=args.num_generations,
            temperature=args.temperature,
            max_tokens=args.max_completion_length,
        )
        texts = processing_class.batch_decode(list(made), skip_special_tokens=True)
        # 2. rewards from the environment
        environment.reset()
        rewards = [environment.step({"message": text}).reward for text in texts]
        # 3. which reach the reward function as a further column
        return {
            "prompt_ids": made.prompt_ids,
            "completion_ids": list(made),
            "logprobs": made.logprobs,
            "env_reward": rewards,
        }

    return rollout_func


def reward_from_env(completions: list[Any], **kwargs: Any) -> list[float]:
    """The example's reward function."""
    rewards = kwargs.get("env_reward", [])
    return [float(reward) for reward in rewards] if rewards else [0.0] * len(completions)


def main() -> None:
    """Start the Echo server, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="default: a tiny one that is made in --out")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/echo"))
    given = parser.parse_args()
    quiet_libraries()
    folder = given.model or build_base(given.out / "base")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    args = GRPOConfig(
        output_dir=str(given.out / "trl"),
        max_steps=given.steps,
        num_generations=GROUP,
        per_device_train_batch_size=GROUP * GROUP,
        max_completion_length=24,
        learning_rate=2e-3,
        beta=0.0,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    app = LocalApp(str(APP), Path(sys.executable))
    asyncio.run(start(app, 60.0))
    with (
        BackgroundLoop() as loop,
        TransformersSampler(model, tokenizer) as sampler,
        GenericEnvClient(base_url=app.url).sync() as environment,
    ):
        client = SamplerClient(sampler, tokenizer, loop)
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward_from_env,
            train_dataset=Dataset.from_dict(
                {"prompt": [[{"role": "user", "content": ASKED}]] * GROUP * given.steps}
            ),
            processing_class=tokenizer,
            rollout_func=legacy_rollout(rollout_with(client, sampler, environment)),
            args=args,
        )
        trainer.remove_callback(ProgressCallback)  # it prints raw dictionaries
        trainer.add_callback(Rewards())
        trainer.train()
    app.stop()


if __name__ == "__main__":
    main()
