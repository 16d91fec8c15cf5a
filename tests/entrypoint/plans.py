"""Plans of runs whose time is never over, and of the servers that they start."""

import time
from collections.abc import Sequence
from pathlib import Path

from entrypoint.batch import BatchShape
from entrypoint.pretended import SIZES, pretend_hardware
from entrypoint.programs import vllm_command
from entrypoint.run_plan import RunPlan
from entrypoint.topology import plan_topology

FOR_EVER = 100_000.0
"""Seconds: however slow the machine is, no run here ends because of its time."""

SPLIT = ("4xH100-80GB", "8xH100-80GB", "4xL40S-48GB", "2xA6000-48GB")
"""Inventories with a vLLM server for one model at least."""


def run_plan(folder: Path, **fields: object) -> RunPlan:
    """A run in `folder`; no time is left for loading what it publishes: the structure counts."""
    now = time.time()
    return RunPlan.model_validate(
        {
            "run_dir": folder / "run",
            "output_dir": folder / "out/repo",
            "socket": folder / "s",
            "started_at": now,
            "trainer_ends_at": now + FOR_EVER,
            "ends_at": now + FOR_EVER,
            "kill_at": now,
            **fields,
        }
    )


def planned_servers() -> list[list[str]]:
    """`serve ...` of every plan that has a vLLM server."""
    planned = []
    for inventory in SPLIT:
        hardware = pretend_hardware(inventory)
        batch = BatchShape(servers=len(hardware.gpus))
        plans = [plan_topology(hardware, shape, batch) for shape in SIZES.values()]
        split = [plan for plan in plans if plan.layout == "split"]
        assert split, f"no plan for {inventory} has a server: name another inventory"
        folder = Path("/cache/models/acme--tiny")
        planned += [list(vllm_command(plan, folder)[1:]) for plan in split]
    return planned


def as_parsed(commands: Sequence[list[str]]) -> list[list[object]]:
    """Output of `tests.vllm_arguments` if vLLM reads these commands as they are meant."""

    def number(command: list[str], flag: str) -> int:
        return int(command[command.index(flag) + 1])

    flags = ("--port", "--data-parallel-size")
    return [[*(number(c, flag) for flag in flags), "processed_logprobs"] for c in commands]
