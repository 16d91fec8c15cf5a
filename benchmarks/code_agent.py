"""A code agent learns arithmetic: `python -m benchmarks.code_agent --seeds 0 1 2`.

The base knows the form of a program only (`miner.tiny_model.code_agent`). It is trained by
`python -m miner train` with the recipe tiny-code-agent, and played on all problems of the pairs of
operands that nothing was trained on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from miner.channels.code_agent import CodeAgentChannel
from miner.config.settings import load_settings
from miner.evaluation.model import model_policy
from miner.evaluation.runner import Rules, evaluate
from miner.tiny_model.code_agent.build import build_agent_base

RECIPE = Path("recipes/tiny-code-agent.toml")
HELD_OUT = 279
"""All problems of 93 pairs of operands, as far as they come out even."""


def score(model: Path, overrides: list[str], temperature: float) -> str:
    """Mean score on all held-out problems, with its interval."""
    settings = load_settings(RECIPE, overrides, environ={})

    async def play() -> Any:
        channel = CodeAgentChannel(settings.environment)
        source = await channel.open()
        tasks = channel.tasks.held_out(HELD_OUT, base_seed=7)
        try:
            return await evaluate(policy, source, tasks, Rules(concurrency=64, timeout_s=None))
        finally:
            await source.close()

    with model_policy(
        model,
        name="model",
        temperature=temperature,
        max_reply_tokens=settings.rollout.max_reply_tokens,
        max_sessions=64,
    ) as policy:
        return str(asyncio.run(play()).score)


def train(base: Path, run: Path, overrides: list[str]) -> dict[str, Any]:
    """One run: its time, and what became of it."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    places = [f"model.path={base}", f"output.dir={run / 'model'}", f"run_dir={run / 'run'}"]
    command = [sys.executable, "-m", "miner", "train", "--config", str(RECIPE)]
    subprocess.run([*command, *places, *overrides], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(time.perf_counter() - began),
        "cpu seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "sampled": score(run / "model", overrides, 1.0),
        "greedy": score(run / "model", overrides, 0.0),
    }


def main() -> None:
    """Make the base if there is none, train each seed, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--form", choices=("inline", "message"), default="inline")
    parser.add_argument("--out", type=Path, default=Path("runs/code-agent"))
    parser.add_argument("overrides", nargs="*", help="of the recipe, as for miner train")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    base = arguments.out / "base"
    if not (base / "config.json").is_file():
        build_agent_base(base)
    chosen = [
        f"environment.code_agent.form={arguments.form}",
        *arguments.overrides,
    ]
    print("base", {t: score(base, chosen, t) for t in (1.0, 0.0)}, flush=True)
    for seed in arguments.seeds:
        run = arguments.out / f"{arguments.form}-{seed}"
        found = train(base, run, [*chosen, f"seed={seed}"])
        print(json.dumps({"form": arguments.form, "seed": seed} | found))


if __name__ == "__main__":
    main()
