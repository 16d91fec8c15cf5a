"""Echo, learned by this project and by TRL's own trainer with a rollout function as documented.

`.venv-openenv/bin/python -m benchmarks.openenv_learning --seeds 0 1 2` (`make setup-openenv`)

The same tiny base, the same OpenEnv server, the same learning rate and 64 episodes a step. Ours is
`examples/train_openenv.py`; TRL's is its `GRPOTrainer` and a `rollout_func(prompts, args,
processing_class)` that generates, steps OpenEnv's client and hands `env_reward` on, as TRL's first
OpenEnv integration has it (`miner.agents.legacy_rollout` makes it one of today's). It writes a
picture and prints what it shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from openenv.core import GenericEnvClient
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from examples.train_openenv import ASKED, build_base
from miner.agents import legacy_rollout
from miner.config.channel_settings import OpenEnvSettings
from miner.environments.openenv.hosting import LocalApp, start
from miner.reporting.run_folder import RunFolder
from miner.reporting.style import MARKERS, MUTED, SERIES, new_figure, save_figure, styled
from miner.rollout.model_folder import load_model_folder

REPOSITORY = Path(__file__).resolve().parent.parent
STEPS, GROUPS, GROUP_SIZE = 15, 8, 8


def ours(out: Path, seed: int) -> list[float]:
    """Mean reward a step of `examples/train_openenv.py`."""
    program = [sys.executable, str(REPOSITORY / "examples/train_openenv.py")]
    words = ["--seed", str(seed), "--out", str(out), f"environment.openenv.python={sys.executable}"]
    if len(RunFolder(out / f"run-{seed}").read().steps) < STEPS:
        subprocess.run([*program, *words], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    steps = RunFolder(out / f"run-{seed}").read().steps
    last, seconds = steps[-1], sum(step.seconds for step in steps)
    cut = (last.score or 0.0) - last.reward  # the penalty is 1 for each, and nothing else costs any
    print(f"ours, seed {seed}: {seconds:.1f} s of steps, {cut:.0%} cut off at last", flush=True)
    return [step.score or 0.0 for step in steps]


def documented_rollout(client: Any, model: Any) -> Any:
    """The rollout function of the integration's Echo example, generating with transformers."""

    def rollout_func(prompts: Any, args: Any, processing_class: Any) -> dict[str, list[Any]]:
        texts = processing_class.apply_chat_template(
            prompts, tokenize=False, add_generation_prompt=True
        )
        given = processing_class(texts, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            made = model.generate(
                **{k: given[k] for k in ("input_ids", "attention_mask")},
                do_sample=True,
                temperature=args.temperature,
                top_k=0,
                max_new_tokens=args.max_completion_length,
                return_dict_in_generate=True,
                output_logits=True,
            )
        width, end = given["input_ids"].shape[1], processing_class.eos_token_id
        result: dict[str, list[Any]] = {"prompt_ids": given["input_ids"].tolist()}
        result["completion_ids"], result["logprobs"] = [], []
        logprobs = torch.stack(made.logits, dim=1).log_softmax(-1)
        for row, ids in enumerate(made.sequences[:, width:].tolist()):
            kept = ids[: ids.index(end) + 1] if end in ids else ids
            result["completion_ids"].append(kept)
            result["logprobs"].append([float(logprobs[row, i, t]) for i, t in enumerate(kept)])
        said = processing_class.batch_decode(result["completion_ids"], skip_special_tokens=True)
        client.reset()
        result["env_reward"] = [client.step({"message": text}).reward for text in said]
        return result

    return rollout_func


def reward_from_env(completions: list[Any], **kwargs: Any) -> list[float]:
    """Its reward function."""
    rewards = kwargs.get("env_reward", [])
    return [float(reward) for reward in rewards] if rewards else [0.0] * len(completions)


class Rewards(TrainerCallback):
    """Keeps the mean reward of each step."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self.cut = 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Called by the trainer."""
        if logs and "reward" in logs:
            self.means.append(logs["reward"])
            self.cut = logs["completions/clipped_ratio"]


def trls(out: Path, seed: int, url: str) -> list[float]:
    """Mean reward a step of TRL's trainer."""
    set_seed(seed)
    loaded = load_model_folder(out / "base", torch.float32)
    prompt = [{"role": "user", "content": ASKED}]
    with GenericEnvClient(base_url=url).sync() as client:
        trainer = GRPOTrainer(
            model=loaded.model,
            reward_funcs=reward_from_env,
            train_dataset=Dataset.from_dict({"prompt": [prompt] * (STEPS * GROUPS)}),
            processing_class=loaded.chat.tokenizer,
            rollout_func=legacy_rollout(documented_rollout(client, loaded.model)),
            args=GRPOConfig(
                output_dir=str(out / f"trl-{seed}"),
                seed=seed,
                use_cpu=True,
                max_steps=STEPS,
                per_device_train_batch_size=GROUPS * GROUP_SIZE,
                num_generations=GROUP_SIZE,
                max_completion_length=24,
                learning_rate=2e-3,
                warmup_steps=2,
                beta=0.0,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                bf16=False,
                # With it generate() has no cache, and goes on from the last token alone.
                gradient_checkpointing=False,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        rewards = Rewards()
        trainer.add_callback(rewards)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
        cut = f"{rewards.cut:.0%} cut off at last"
        print(f"TRL, seed {seed}: {seconds:.1f} s of steps, {cut}", flush=True)
    return rewards.means


def picture(curves: dict[str, list[list[float]]], file: Path) -> None:
    """Mean reward by step, a line a seed."""
    with styled():
        figure = new_figure(7.5, 4.2)
        axes = figure.add_subplot()
        axes.grid(axis="y")
        for (name, lines), color, marker in zip(curves.items(), SERIES, MARKERS, strict=False):
            for number, line in enumerate(lines):
                label = "_" if number else name
                axes.plot(range(1, len(line) + 1), line, marker, ls="-", color=color, ms=3.5,
                          lw=1.3, label=label)  # fmt: skip
        axes.axhline(0.95, color=MUTED, linewidth=0.9, linestyle="--")
        axes.set_xlabel(f"step, {GROUPS * GROUP_SIZE} episodes each")
        axes.set_ylabel("mean reward, at most 1")
        axes.set_ylim(0, 1.04)
        axes.set_title("Echo on an OpenEnv server, a line a seed")
        axes.legend(loc="lower right")
    save_figure(figure, file)


def main() -> None:
    """Learn by both, each seed once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/echo"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/openenv_echo.png"))
    arguments = parser.parse_args()
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    torch.set_num_threads(1)
    out = arguments.out.resolve()
    build_base(out / "base")
    host = LocalApp(str(REPOSITORY / "examples/openenv/echo.py"), Path(sys.executable))
    asyncio.run(start(host, OpenEnvSettings().start_seconds))
    curves: dict[str, list[list[float]]] = {"ours": [], "TRL's trainer, documented rollout": []}
    try:
        for seed in arguments.seeds:
            for lines, line in zip(
                curves.values(), (ours(out, seed), trls(out, seed, host.url)), strict=True
            ):
                lines.append(line)
    finally:
        host.stop()
    picture(curves, arguments.picture)
    (out / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
    for name, lines in curves.items():
        for seed, line in zip(arguments.seeds, lines, strict=True):
            there = next((i for i, mean in enumerate(line, start=1) if mean >= 0.95), None)
            print(f"{name}, seed {seed}: {line[0]:.3f} -> {line[-1]:.3f}, 0.95 at step {there}")


if __name__ == "__main__":
    main()
