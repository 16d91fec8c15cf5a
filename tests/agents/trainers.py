"""Small trainers of TRL on a CPU, and an environment that keeps what it made."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from miner.agents import Environment, GRPOTrainer
from miner.agents.client import Client, VLLMClientGenerationConfig
from tests.builders import build_qwen3, build_tokenizer

PROMPTS = [{"prompt": "12 "}, {"prompt": "3 "}]


def config(folder: Path, **options: Any) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=4, num_generations=2, max_steps=1,
        max_completion_length=6, learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no",
        bf16=False, disable_tqdm=True, **options,
    )  # fmt: skip


def trainer(folder: Path, **options: Any) -> GRPOTrainer:
    given = {
        "model": build_qwen3(),
        "reward_funcs": [lambda completions, **_: [float(len(text)) for text in completions]],
        "args": config(folder),
        "train_dataset": Dataset.from_list(PROMPTS * 4),
        "processing_class": build_tokenizer(),
    }
    return GRPOTrainer(**{**given, **options})


class Recording(Environment):
    """The base environment, which keeps what it was asked and what it gave."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.made: list[list[int]] = []

    def generate(
        self, vllm_client: Client, generation_config: VLLMClientGenerationConfig,
        prompts: Sequence[str],
    ) -> list[list[int]]:  # fmt: skip
        made = super().generate(vllm_client, generation_config, prompts)
        self.prompts, self.made, self.config = list(prompts), made, generation_config
        return made
