"""A code agent learns arithmetic: `python -m benchmarks.code_agent --seeds 0 1 2`.

The base knows the form of a program only (`miner.tiny_model.code_agent`). It is trained by the
project's scheduler, renderer, samplers and GRPO trainer, with the local sandbox, and played on
pairs of operands that nothing was trained on. `--learn first` trains on the first reply only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, set_seed

from miner.background_loop import BackgroundLoop
from miner.config.settings import Settings, load_settings
from miner.distributed.ranks import Ranks
from miner.environments import EpisodeTask
from miner.environments.code_agent import Arithmetic, CodeAgentSource, Form
from miner.executors import LocalSandbox
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.episode import EpisodeParams
from miner.rollout.groups import Group, GroupResult
from miner.rollout.model_folder import LoadedModel, load_model_folder
from miner.rollout.scheduler import Scheduler
from miner.tiny_model.code_agent.build import build_agent_base
from miner.training.rollout_function import RolloutFunction, episode_reward
from miner.training.tasks import encode_task
from miner.training.trainer import EpisodeTrainer, grpo_config

HELD_OUT = 279
"""All problems of 93 pairs of operands, as far as they come out even."""


class Play:
    """Plays groups with a model's current weights."""

    def __init__(self, loaded: LoadedModel, settings: Settings, form: Form, seed: int) -> None:
        self._renderer = loaded.chat.renderer
        self._rollout = settings.rollout
        self.sampler = TransformersSampler(loaded.model, loaded.chat.tokenizer, seed=seed)
        self.source = CodeAgentSource(Arithmetic(), LocalSandbox(), form=form)
        self.loop = BackgroundLoop()

    def groups(self, groups: Sequence[Group], temperature: float = 1.0) -> list[GroupResult]:
        """Play them; the weights may have changed since the last time."""
        self.sampler.invalidate()
        sampling = SamplingParams(self._rollout.max_reply_tokens, temperature)
        params = EpisodeParams(sampling, self._rollout.max_episode_tokens)
        scheduler = Scheduler(self.source, self.sampler, self._renderer, params)
        return self.loop.run(scheduler.run(groups))

    def score(self, tasks: Sequence[EpisodeTask], temperature: float) -> float:
        """Mean score, one episode a task."""
        results = self.groups([Group(task, 1) for task in tasks], temperature)
        return statistics.fmean(t.score for result in results for t in result.trajectories)

    def close(self) -> None:
        """End threads and processes."""
        self.loop.run(self.source.close())
        self.loop.close()
        self.sampler.close()


class Curve(TrainerCallback):
    """Prints and keeps a line a step."""

    def __init__(self, rollout: RolloutFunction) -> None:
        self._rollout = rollout
        self.scores: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the trainer."""
        if self._rollout.latest is not None:
            self.scores.append(self._rollout.latest.mean_score)
            print(f"step {state.global_step} score {self.scores[-1]:.3f}", flush=True)


def run_settings(arguments: argparse.Namespace, seed: int, out: Path) -> Settings:
    """Of one run."""
    return load_settings(
        overrides=[
            f"run_dir={out / f'seed-{seed}'}",
            f"seed={seed}",
            f"reward.learn_turns={arguments.learn}",
            f"rollout.groups_per_step={arguments.groups}",
            "rollout.group_size=8",
            "rollout.max_reply_tokens=16",
            "rollout.max_episode_tokens=128",
            "optimizer.micro_batch_tokens=8000",
            f"optimizer.learning_rate={arguments.rate}",
            f"optimizer.max_steps={arguments.steps}",
        ],
        environ={},
    )


def train(base: Path, settings: Settings, form: Form, seed: int) -> dict[str, Any]:
    """One run: scores before and after, and the curve."""
    set_seed(seed)
    loaded = load_model_folder(base, torch.float32)
    play = Play(loaded, settings, form, seed)
    problems = Arithmetic()
    held_out = problems.held_out(HELD_OUT, base_seed=7)
    count = settings.optimizer.max_steps * settings.rollout.groups_per_step
    tasks = [encode_task(problems.training(index, seed)) for index in range(count)]
    found: dict[str, Any] = {"seed": seed, "base": play.score(held_out, 1.0)}
    found["base greedy"] = play.score(held_out, 0.0)
    print(found, flush=True)
    rollout = RolloutFunction(
        play.groups, settings.reward, loaded.chat.renderer.eos_token_id, Ranks()
    )
    steps = settings.optimizer.max_steps
    trainer = EpisodeTrainer(
        model=loaded.model,
        args=grpo_config(settings),
        processing_class=loaded.chat.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": tasks}),
        reward_funcs=[episode_reward],
        rollout_func=rollout,
        tokens_per_pass=settings.optimizer.micro_batch_tokens,
        learning_rate_factor=lambda step: min(1.0, (step + 1) / 3) * (1 - step / (steps + 1)),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    curve = Curve(rollout)
    trainer.add_callback(curve)
    began, cpu = time.perf_counter(), os.times()
    trainer.train()
    now = os.times()
    found["seconds"] = round(time.perf_counter() - began)
    found["cpu seconds"] = round(sum(now[:4]) - sum(cpu[:4]))
    found["sampled"], found["greedy"] = play.score(held_out, 1.0), play.score(held_out, 0.0)
    found["curve"] = curve.scores
    play.close()
    return found


def main() -> None:
    """Make the base if there is none, train each seed, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--form", type=Form, choices=list(Form), default=Form.INLINE)
    parser.add_argument("--learn", choices=("all", "first"), default="all")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--out", type=Path, default=Path("runs/code-agent"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = arguments.out / "base"
    if not (base / "config.json").is_file():
        build_agent_base(base)
    name = f"{arguments.form}-{arguments.learn}"
    for seed in arguments.seeds:
        settings = run_settings(arguments, seed, arguments.out / name)
        found = train(base, settings, arguments.form, seed)
        (arguments.out / f"{name}-{seed}.json").write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps({key: value for key, value in found.items() if key != "curve"}))


if __name__ == "__main__":
    main()
