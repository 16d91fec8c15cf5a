"""TRL's proposed code agent, trained on a laptop: `python examples/code_agent_environment.py`.

The script is the one of the interface's documentation, but for the model (a tiny one that is made
here, or `--model`), the executer (this machine's sandbox, or E2B with `E2B_API_KEY` set) and the
engine: the model itself generates, or a `vllm serve` with `--server URL`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ProgressCallback,
    TrainerCallback,
)
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.agents import (
    CodeAgentEnvironment,
    E2BExecuter,
    GRPOTrainer,
    LocalExecuter,
    VLLMClient,
    VLLMClientGenerationConfig,
)
from miner.agents.client import SamplerClient
from miner.background_loop import BackgroundLoop
from miner.environments.code_agent import Arithmetic
from miner.inference.transformers.sampler import TransformersSampler
from miner.tiny_model.code_agent.build import build_agent_base

PROBLEMS = Arithmetic()
GROUP = 8


def solved(prompts: list[str], completions: list[str], task: list[int], **_: Any) -> list[float]:
    """1 for the right answer behind the last output."""
    return [
        PROBLEMS.problem(number).grade(text.rpartition("</output>")[2])
        for number, text in zip(task, completions, strict=True)
    ]


class Rewards(TrainerCallback):
    """Prints a line for what the trainer logs."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "reward" in logs:
            print(f"step {state.global_step}/{state.max_steps} reward {logs['reward']:.2f}")


def main() -> None:
    """Look at the agent, train it, and look again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("runs/code-agent/base"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--server", help="a `vllm serve` of the model, to look with")
    parser.add_argument("--out", type=Path, default=Path("runs/code-agent/example"))
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").is_file():
        build_agent_base(arguments.model)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    tasks = [PROBLEMS.training(index, 0).task_id for index in range(arguments.steps * GROUP)]
    rows: list[dict[str, Any]] = [
        {"prompt": ask(tokenizer, number), "task": number} for number in tasks
    ]

    executer = E2BExecuter() if os.environ.get("E2B_API_KEY") else LocalExecuter()
    my_env = CodeAgentEnvironment(
        code_executer=executer,
        tokenizer=tokenizer,
        parsing_string="<code>",
        stop_string="</code>",
    )
    look(my_env, model, tokenizer, [row["prompt"] for row in rows[:3]], arguments.server)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=solved,
        args=GRPOConfig(
            output_dir=str(arguments.out),
            per_device_train_batch_size=GROUP * GROUP,
            num_generations=GROUP,
            max_steps=arguments.steps,
            max_completion_length=16,
            learning_rate=8e-4,
            beta=0.0,
            use_cpu=True,
            bf16=False,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment=my_env,
    )
    trainer.remove_callback(ProgressCallback)  # it prints raw dictionaries
    trainer.add_callback(Rewards())
    trainer.train()
    look(my_env, model, tokenizer, [row["prompt"] for row in rows[:3]], None)
    executer.close()


def ask(tokenizer: Any, number: int) -> str:
    """The prompt of a problem."""
    chat = [{"role": "user", "content": PROBLEMS.problem(number).question}]
    return str(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))


def look(
    my_env: CodeAgentEnvironment, model: Any, tokenizer: Any, prompts: list[str], server: str | None
) -> None:
    """Print what the agent does, outside of training."""
    gen_config = VLLMClientGenerationConfig(n=1, temperature=1.0, max_tokens=16)
    if server:
        client = VLLMClient(server)
        responses = my_env.run_agent(
            vllm_client=client, generation_config=gen_config, prompts=prompts
        )
        client.close()
    else:
        with BackgroundLoop() as loop, TransformersSampler(model, tokenizer) as sampler:
            responses = my_env.run_agent(
                SamplerClient(sampler, tokenizer, loop), gen_config, prompts
            )
    for prompt, response in zip(prompts, responses, strict=True):
        print(tokenizer.decode(tokenizer(prompt)["input_ids"], skip_special_tokens=True), response)


if __name__ == "__main__":
    main()
