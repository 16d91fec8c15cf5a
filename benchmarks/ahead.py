"""What playing a step ahead brings on a CPU: `python -m benchmarks.ahead BASE OUT --seconds 240`.

Two processes of one thread each: the trainer, and the tests' server in the place of `vllm serve`
(`--server .venv-vllm/bin/vllm` takes vLLM itself). For each seed the same run is made without and
with `rollout.ahead`, one after the other, for the same time and from the same base (`python -m
miner.tiny_model --out BASE`). With a number of `--steps` the runs are as long in steps instead:
then the scores tell what older weights cost, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import requests
import typer
from rich.console import Console
from rich.table import Table

from entrypoint.programs import ONE_HOST
from miner.distributed.launch import free_port
from miner.reporting.records import LOGPROB_GAP
from miner.reporting.run_folder import RunFolder

REPOSITORY = Path(__file__).resolve().parent.parent
STUB = f"{sys.executable} -m tests.stub_vllm"
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--logprobs-mode", "processed_logprobs"),
    *("--weight-transfer-config", '{"backend":"nccl_or_file"}'),
    *("--worker-extension-cls", "miner.inference.vllm.worker.NcclOrFile"),
)
REAL = ("--enforce-eager", "--no-enable-chunked-prefill", "--gpu-memory-utilization", "0.05")
ENVIRONMENT = {
    **os.environ,
    **ONE_HOST,
    "PYTHONPATH": str(REPOSITORY),
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "ENVIRONMENT_SERVER_URLS": "",
}


@contextmanager
def served(command: str, base: Path, log: Path) -> Iterator[str]:
    """A server of `base`; yields its URL."""
    port = free_port()
    words = [*command.split(), "serve", str(base), "--port", str(port), *FLAGS]
    words += () if command == STUB else REAL
    with log.open("w") as out:
        process = subprocess.Popen(words, env=ENVIRONMENT, stdout=out, stderr=out, cwd=REPOSITORY)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _answers(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended: {log.read_text()}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=60).ok
    except requests.ConnectionError:
        return False


def learn(out: Path, base: Path, command: str, overrides: list[str]) -> None:
    """One run of the demo's recipe at a constant rate, evaluated at its beginning and its end."""
    out.mkdir(parents=True)
    with served(command, base, out / "server.log") as url, (out / "log").open("w") as log:
        words = [
            *(sys.executable, "-m", "miner", "train", "--config", "recipes/tiny-8-cards.toml"),
            *(f"model.path={base}", f"output.dir={out}/task/repo", f"run_dir={out}/run"),
            *("rollout.engine=vllm_server", f"rollout.server={url}"),
            *("environment.channel=builtin", "rollout.max_episode_tokens=1024", "threads=1"),
            *("optimizer.schedule=constant", "evaluation.every_steps=100000"),
            "checkpoint.every_steps=100000",
        ]
        words += overrides
        subprocess.run(words, env=ENVIRONMENT, stdout=log, stderr=log, cwd=REPOSITORY, check=True)


def main(
    base: Path,
    out: Path,
    seconds: Annotated[
        float, typer.Option(help="Of each run, from the base's evaluation on.")
    ] = 240,
    steps: Annotated[int, typer.Option(help="Of each run, in the place of seconds.")] = 0,
    seeds: int = 3,
    server: Annotated[str, typer.Option(help="Command before `serve`.")] = STUB,
) -> None:
    """Print a table; runs that OUT has already are not made again."""
    length = f"optimizer.max_steps={steps}" if steps else f"deadline.seconds={seconds}"
    table = Table("seed", "ahead", "steps", "seconds a step", "logprob gap", "base", "held-out")
    table.title = f"{length}, load {os.getloadavg()[0]:.1f} at the start"
    for seed in range(seeds):
        for ahead in ("false", "true"):
            folder = out.absolute() / f"{length}-{seed}-{ahead}"
            if len(RunFolder(folder / "run").read().evaluations) < 2:
                shutil.rmtree(folder, ignore_errors=True)
                wanted = [f"rollout.ahead={ahead}", f"seed={seed}", length]
                learn(folder, base.absolute(), server, wanted)
            run = RunFolder(folder / "run").read()
            first, last = run.evaluations[0], run.evaluations[-1]
            table.add_row(
                str(seed),
                ahead,
                str(run.steps[-1].step),
                f"{median(step.seconds for step in run.steps):.2f}",
                f"{mean(step.metrics[LOGPROB_GAP] for step in run.steps):.4f}",
                str(first.score),
                str(last.score),
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
