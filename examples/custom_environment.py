"""An environment of one's own over the interface, as its documentation has it, trained for a step.

`python examples/custom_environment.py --model MODEL`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from datasets import Dataset
from transformers import ProgressCallback
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.agents import Environment, GRPOTrainer, VLLMClientGenerationConfig


class MyCustomEnv(Environment):
    """Asks politely."""

    def __init__(self, please: str) -> None:
        self.please = please

    def generate(
        self, vllm_client, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> list:
        """One's own rollout logic."""
        completion_ids = vllm_client.generate(
            prompts=[f"{self.please} {prompt}" for prompt in prompts], **vars(generation_config)
        )
        return completion_ids  # noqa: RET504


def main() -> None:
    """Train a model to answer at length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1)
    arguments = parser.parse_args()
    trainer = GRPOTrainer(
        model=str(arguments.model),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(
            output_dir="runs/custom-environment",
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=arguments.steps,
            max_completion_length=16,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": ["12 plus 5 ?"] * 8}),
        environment=MyCustomEnv("please:"),
    )
    trainer.remove_callback(ProgressCallback)  # it prints raw dictionaries
    result = trainer.train()
    print(f"{result.global_step} steps, mean loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
