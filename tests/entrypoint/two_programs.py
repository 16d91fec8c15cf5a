"""Inference and trainer as two programs under the real supervisord, with the planned commands."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from entrypoint.batch import BatchShape
from entrypoint.memory import ModelShape
from entrypoint.pretended import pretend_hardware
from entrypoint.programs import inference_program, vllm_command
from entrypoint.run_plan import RunPlan
from entrypoint.topology import plan_topology
from entrypoint.trainer_settings import INFERENCE_PORT
from miner.distributed.launch import free_port
from miner.reporting.records import StepRecord
from miner.reporting.run_folder import RunFolder
from tests.deepspeed_here import needs_deepspeed
from tests.entrypoint.plans import run_plan

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINER = Path(__file__).parent / "fakes/container.py"
STEPS = 3
SHAPE = ModelShape(600_000, 2, 128, 512, 4, 2, 32, 300, 2048)


TWO_GPUS, SIX_GPUS = "2xH100-80GB", "6xH100-80GB"


def planned_words(base: Path, inventory: str = TWO_GPUS) -> tuple[str, ...]:
    """The words after `vllm` as planned for these GPUs; of six, two are vLLM's (data parallel)."""
    topology = plan_topology(pretend_hardware(inventory), SHAPE, BatchShape())
    vllm, *words = vllm_command(topology, base)
    assert vllm == "vllm"
    return tuple(words)


def words_for_a_cpu(
    base: Path, port: int, memory_share: float = 0.9, inventory: str = TWO_GPUS
) -> tuple[str, ...]:
    """The planned words with the little that a CPU needs to be different."""
    replaced = {
        str(INFERENCE_PORT): str(port),
        "bfloat16": "float32",
        "0.90": f"{memory_share:.2f}",
    }
    words = planned_words(base, inventory)
    assert replaced.keys() <= set(words)
    return tuple(replaced.get(word, word) for word in words)


@dataclass(frozen=True)
class TwoPrograms:
    """A run of both programs, its plan, and where the server listens."""

    process: subprocess.Popen[bytes]
    plan: RunPlan
    server: str
    printed: Path

    def end(self) -> tuple[int, str]:
        """Wait for the run: its exit status and all that it printed."""
        status = self.process.wait()
        return status, self.printed.read_text(errors="replace")

    def steps(self) -> list[StepRecord]:
        """The trainer's records."""
        return RunFolder(self.plan.train_dir).read().steps


@contextmanager
def two_programs(
    folder: Path,
    base: Path,
    vllm: tuple[str, ...],
    *,
    memory_share: float = 0.9,
    flags: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    ranks: int = 1,
) -> Iterator[TwoPrograms]:
    """Start both; `vllm` is what stands for that word in the planned command, `flags` come last.

    Two ranks have ZeRO's highest stage.
    """
    port = free_port()
    health = f"http://127.0.0.1:{port}/health"
    plan = run_plan(folder, inference_health=health, poll_seconds=0.1, stop_seconds=5.0)
    plan.train_dir.mkdir(parents=True)
    plan.output_dir.parent.mkdir()
    if ranks > 1:
        needs_deepspeed()
    plan.settings_file.write_text(tomli_w.dumps(settings_for(plan, base, port, ranks)))
    plan.write()
    words = (*vllm, *words_for_a_cpu(base, port, memory_share), *flags)
    trainer = (sys.executable, "-m", "miner", "train")
    printed = folder / "printed"
    with container(plan, words, trainer, printed, environment=environment, ranks=ranks) as process:
        yield TwoPrograms(process, plan, f"http://127.0.0.1:{port}", printed)


@contextmanager
def container(
    plan: RunPlan,
    vllm: tuple[str, ...],
    trainer: tuple[str, ...],
    printed: Path,
    *,
    environment: Mapping[str, str] | None = None,
    ranks: int = 1,
) -> Iterator[subprocess.Popen[bytes]]:
    """Both programs of a written plan under supervisord; what they print goes to `printed`."""
    topology = plan_topology(pretend_hardware(TWO_GPUS), SHAPE, BatchShape())
    program = inference_program(plan, topology, Path())
    wrapper = program.command[: program.command.index("vllm")]
    programs = {
        "inference": [*wrapper, *vllm],
        "trainer": [*trainer, "--config", str(plan.settings_file), "--processes", str(ranks)],
    }
    planned = {key: value for key, value in program.environment.items() if "CUDA" not in key}
    with printed.open("ab") as output:  # nobody would read a pipe in time, and a full one holds all
        process = subprocess.Popen(
            [sys.executable, str(CONTAINER), str(plan.plan_file), json.dumps(programs)],
            env={
                **os.environ,
                **planned,
                "PYTHONUNBUFFERED": "1",
                "ENVIRONMENT_SERVER_URLS": "",
                **(environment or {}),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def settings_for(plan: RunPlan, base: Path, port: int, ranks: int) -> dict[str, object]:
    """A short training run that generates on the server at `port`."""
    return {
        "run_dir": str(plan.train_dir),
        "threads": 1,
        "model": {"path": str(base)},
        "output": {"dir": str(plan.output_dir)},
        "environment": {"channel": "builtin", "deck_sizes": [8]},
        "rollout": {
            "engine": "vllm_server",
            "server": f"http://127.0.0.1:{port}",
            "groups_per_step": 2,
            "max_episode_tokens": 1024,
        },
        "optimizer": {
            "max_steps": STEPS,
            "micro_batch_tokens": 4096,
            "zero_stage": 3 if ranks > 1 else 0,
        },
        "evaluation": {"episodes": 10, "every_steps": STEPS},
    }
