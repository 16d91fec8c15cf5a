"""Inference and trainer as two programs under the real supervisord, weights over real HTTP.

The trainer is the real one; the stub server stands for `vllm serve`, with the command line that the
plan for two GPUs gives it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tomli_w

from entrypoint.inventory import pretend_hardware
from entrypoint.memory import ModelShape
from entrypoint.programs import inference_program
from entrypoint.run_plan import RunPlan
from entrypoint.topology import BatchShape, plan_topology
from entrypoint.trainer_settings import INFERENCE_PORT, deepspeed_config
from miner.reporting.run_folder import RunFolder
from miner.rollout.vllm_surface import FIELDS
from miner.tiny_model.build import Recipe, build_tiny_model
from miner.tiny_model.warm_start import WarmStartRecipe
from miner.training.launch import free_port
from tests.deepspeed_here import needs_deepspeed

pytestmark = pytest.mark.timeout(900)  # slow shared machines: training runs for real here

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINER = Path(__file__).parent / "fakes/container.py"
STEPS = 3
SHAPE = ModelShape(600_000, 2, 128, 512, 4, 2, 32, 300, 2048)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that knows little more than the form of a reply."""
    recipe = replace(Recipe(), warm_start=WarmStartRecipe(steps=40))
    return build_tiny_model(tmp_path_factory.mktemp("models") / "base", recipe=recipe, seed=0)


def planned_command(base: Path) -> tuple[str, ...]:
    """`vllm serve` as planned for two GPUs."""
    topology = plan_topology(pretend_hardware("2xH100-80GB"), SHAPE, BatchShape())
    return inference_program(topology, base).command


def stub_command(base: Path, port: int) -> list[str]:
    """The same, the stub in vLLM's place."""
    vllm, *words = planned_command(base)
    assert vllm == "vllm"
    replaced = {
        str(INFERENCE_PORT): str(port),
        '{"backend":"nccl"}': '{"backend":"file"}',
        "bfloat16": "float32",
    }
    assert replaced.keys() <= set(words)
    return [sys.executable, "-m", "tests.stub_vllm", *(replaced.get(w, w) for w in words)]


@dataclass
class TwoPrograms:
    """A run of both programs, its plan, the stub's journal."""

    process: subprocess.Popen[str]
    plan: RunPlan
    journal: Path

    def events(self, kind: str = "") -> list[str]:
        """What the stub did, all or of one kind."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [line for line in lines if line.startswith(kind)]


def spread_over_two_ranks(plan: RunPlan) -> dict[str, object]:
    """Settings for the planned DeepSpeed of four GPUs at its highest stage, in float32."""
    needs_deepspeed()
    topology = plan_topology(pretend_hardware("4xH100-80GB"), SHAPE, BatchShape())
    assert topology.processes == 2
    config = deepspeed_config(replace(topology, zero_stage=3))
    config.pop("bf16")
    plan.deepspeed_file.write_text(json.dumps(config))
    return {"deepspeed": str(plan.deepspeed_file)}


def settings_for(
    plan: RunPlan, base: Path, port: int, deepspeed: dict[str, object]
) -> dict[str, object]:
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
        "optimizer": {"max_steps": STEPS, "micro_batch": 8, **deepspeed},
        "evaluation": {"episodes": 10, "every_steps": STEPS},
    }


@pytest.fixture(params=[1, 2], ids=["one rank", "two ranks under ZeRO-3"])
def two_programs(
    request: pytest.FixtureRequest, tmp_path: Path, base: Path
) -> Iterator[TwoPrograms]:
    now, port = time.time(), free_port()
    plan = RunPlan.model_validate(
        {
            "run_dir": tmp_path / "run",
            "output_dir": tmp_path / "out/repo",
            "socket": tmp_path / "s",
            "started_at": now,
            "trainer_ends_at": now + 800,
            "ends_at": now + 850,
            "kill_at": now + 900,
            "inference_health": f"http://127.0.0.1:{port}/health",
            "poll_seconds": 0.1,
            "stop_seconds": 5.0,
        }
    )
    plan.train_dir.mkdir(parents=True)
    plan.output_dir.parent.mkdir()
    deepspeed = spread_over_two_ranks(plan) if request.param > 1 else {}
    plan.settings_file.write_text(tomli_w.dumps(settings_for(plan, base, port, deepspeed)))
    plan.write()
    programs = {
        "inference": stub_command(base, port),
        "trainer": [
            *(sys.executable, "-m", "miner", "train"),
            *("--config", str(plan.settings_file), "--processes", str(request.param)),
        ],
    }
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "STUB_VLLM_JOURNAL": str(tmp_path / "journal"),
        "ENVIRONMENT_SERVER_URLS": "",
    }
    process = subprocess.Popen(
        [sys.executable, str(CONTAINER), str(plan.plan_file), json.dumps(programs)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield TwoPrograms(process, plan, tmp_path / "journal")
    process.kill()
    process.wait()


def test_every_planned_flag_is_among_those_that_vllm_is_checked_for() -> None:
    flags = {word[2:].replace("-", "_") for word in planned_command(Path("/m")) if word[:2] == "--"}
    assert flags - {"host", "port"} == set(FIELDS["vllm.engine.arg_utils:EngineArgs"])


def test_weights_travel_version_by_version_through_the_death_of_the_server(
    two_programs: TwoPrograms,
) -> None:
    """The server is killed in the rollout of step 2; supervisord starts it, nothing is lost."""
    while not any(line == "sample 1" for line in two_programs.events("sample")):
        assert two_programs.process.poll() is None, two_programs.process.communicate()[0]
        time.sleep(0.01)
    os.kill(int(two_programs.events("start")[0].split()[1]), signal.SIGKILL)
    output, _ = two_programs.process.communicate()
    assert two_programs.process.returncode == 0, output
    assert "attempt 2" not in output  # the same trainer went on
    assert len(two_programs.events("start")) == 2

    steps = RunFolder(two_programs.plan.train_dir).read().steps
    assert [record.step for record in steps] == list(range(1, STEPS + 1))
    assert all(record.lost_episodes == 0 for record in steps)
    gaps = [record.metrics["sampling/sampling_logp_difference/max"] for record in steps]
    assert max(gaps) < 1e-2  # the same weights in both programs, at every step

    events = two_programs.events()
    after_death = events[events.index(two_programs.events("start")[1]) + 1 :]
    assert after_death[0] == "push 1"
    sampled = [key.split()[1] for key, _ in itertools.groupby(two_programs.events("sample"))]
    assert sampled == ["default", *map(str, range(1, STEPS + 1))]
