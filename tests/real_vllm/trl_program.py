"""TRL's trainer with its own vLLM within it: `python -m tests.real_vllm.trl_program OUT`.

Runs with the Python that has vLLM. TRL's way of weights into it is wrapped, since vLLM on a CPU
takes none one at a time.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vllm
from datasets import Dataset
from trl import GRPOConfig
from trl.generation import vllm_generation

from miner.agents import Environment, GRPOTrainer
from miner.inference.vllm.reload import reloading
from tests.builders import build_tokenizer, logprobs_of
from tests.real_vllm.models import save_model

SENT = vllm_generation.VLLMGeneration.sync_weights


def sent(there: Any) -> None:
    with reloading(there.llm):
        SENT(there)
    there.llm.reset_prefix_cache()


def opened(**options: Any) -> vllm.LLM:
    return vllm.LLM(**{**options, "dtype": "float32", "enforce_eager": True})


class Compared(Environment):
    """The base environment, which compares log-probabilities with the trained model's."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def generate(self, client: Any, config: Any, prompts: Sequence[str]) -> Any:
        made: Any = super().generate(client, config, prompts)
        for item in made.items:
            trained = logprobs_of(self.trainer.model, item.prompt_ids, item.ids)
            pairs = zip(trained, item.logprobs, strict=True)
            off = max(abs(ours - vllms) for ours, vllms in pairs)
            self.said.append({"off": off, "context": client.context})
        return made


def main() -> None:
    out = Path(sys.argv[1])
    vllm_generation.VLLMGeneration.sync_weights = sent
    vllm_generation.LLM = opened
    args = GRPOConfig(
        output_dir=str(out / "run"), per_device_train_batch_size=4, num_generations=2, max_steps=3,
        max_completion_length=6, learning_rate=1e-2, use_cpu=True, bf16=False, save_strategy="no",
        report_to=[], disable_tqdm=True, use_vllm=True, vllm_gpu_memory_utilization=0.05,
        vllm_max_model_length=512, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    environment = Compared()
    environment.trainer = GRPOTrainer(
        str(save_model(out / "base", tied=False)),
        [lambda completions, **_: [float(len(text)) for text in completions]],
        args,
        train_dataset=Dataset.from_list([{"prompt": "12 "}, {"prompt": "3 "}] * 8),
        processing_class=build_tokenizer(),
        environment=environment,
    )
    environment.trainer.train()
    (out / "said.json").write_text(json.dumps(environment.said))


if __name__ == "__main__":
    main()
