"""Which layout the planner chooses for which model on how many GPUs, as a table for docs/gpu.md.

Seconds are `entrypoint.step_cost`'s estimates: `python -m benchmarks.topologies`.
"""

from __future__ import annotations

from entrypoint.inventory import pretend_hardware
from entrypoint.pretended_model import SIZES
from entrypoint.step_cost import step_cost
from entrypoint.topology import BatchShape, Topology, plan_topology
from miner.config.overrides import value_at
from miner.config.recipes import recipe

GPUS = (1, 2, 4, 8)


def cell(size: str, gpus: int) -> str:
    """The plan for a model of this size, and its seconds a step."""
    hardware = pretend_hardware(f"{gpus}xH100-80GB")
    longest = value_at(recipe("real").settings, "rollout.max_episode_tokens")
    batch = BatchShape(servers=gpus, episode_tokens=longest)
    plan = plan_topology(hardware, SIZES[size], batch)
    seconds = step_cost(plan, SIZES[size], hardware, batch.group_size).seconds
    return f"{describe(plan)}: {seconds:.0f} s"


def describe(plan: Topology) -> str:
    """The layout in a few words."""
    tuning = "" if plan.tuning == "full" else ", LoRA"
    zero = f", ZeRO-{plan.zero_stage}" if plan.zero_stage else ""
    if plan.layout == "split":
        return f"{len(plan.inference_gpus)} vLLM + {plan.processes} trainers{tuning}{zero}"
    return f"{plan.layout}{tuning}{zero}"


def main() -> None:
    """Print the table."""
    print("| parameters |", " | ".join(f"{gpus} x H100" for gpus in GPUS), "|")
    print("|---" * (1 + len(GPUS)) + "|")
    for size in SIZES:
        print(f"| {size} |", " | ".join(cell(size, gpus) for gpus in GPUS), "|")


if __name__ == "__main__":
    main()
