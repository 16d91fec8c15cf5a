"""Which layout the planner chooses for duels of which model on how many GPUs, for docs/gpu.md.

Seconds are `entrypoint.step_cost`'s estimates: `python -m benchmarks.topologies`; `--vary 0.5 2`
adds which choices are others where any one of its constants is half or twice as large.
"""

from __future__ import annotations

import argparse

from entrypoint import step_cost
from entrypoint.layout import Topology
from entrypoint.pretended import SIZES, pretend_hardware
from entrypoint.topology import BatchShape, plan_topology
from entrypoint.trainer_settings import DUEL_TURNS
from entrypoint.workload import duels
from miner.config.contract import GAMES
from miner.config.overrides import value_at
from miner.config.recipes import recipe

GPUS = (1, 2, 4, 8)
CELLS = [(size, gpus) for size in SIZES for gpus in GPUS]


def chosen(size: str, gpus: int) -> tuple[str, float]:
    """The plan for a model of this size, and its seconds for 16 groups, however many a step has."""
    hardware = pretend_hardware(f"{gpus}xH100-80GB")
    longest = value_at(recipe("real").settings, "rollout.max_episode_tokens")
    work = duels(GAMES, DUEL_TURNS)
    batch = BatchShape(servers=0, episode_tokens=longest, work=work)
    plan = plan_topology(hardware, SIZES[size], batch)
    cost = step_cost.step_cost(plan, SIZES[size], hardware, batch.group_size, work)
    return describe(plan), cost.seconds / plan.groups * batch.groups


def describe(plan: Topology) -> str:
    """The layout in a few words."""
    tuning = "" if plan.tuning == "full" else ", LoRA"
    zero = f", ZeRO-{plan.zero_stage}" if plan.zero_stage else ""
    if plan.layout == "split":
        return f"{len(plan.inference_gpus)} vLLM + {plan.processes} trainers{tuning}{zero}"
    return f"{plan.layout}{tuning}{zero}"


def vary(factor: float) -> None:
    """Print which choices are others with one constant `factor` times as large."""
    usual = {cell: chosen(*cell)[0] for cell in CELLS}
    constants = {
        name: value
        for name, value in vars(step_cost).items()
        if name.isupper() and isinstance(value, int | float)
    }
    for name, value in constants.items():
        setattr(step_cost, name, factor * value)
        for cell in CELLS:
            if (other := chosen(*cell)[0]) != usual[cell]:
                print(f"{factor:g} x {name}: {cell[0]} on {cell[1]}: {usual[cell]} -> {other}")
        setattr(step_cost, name, value)


def main() -> None:
    """Print the table, and what else was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vary", nargs="+", type=float, default=[], metavar="FACTOR")
    given = parser.parse_args()
    print("| parameters |", " | ".join(f"{gpus} x H100" for gpus in GPUS), "|")
    print("|---" * (1 + len(GPUS)) + "|")
    for size in SIZES:
        cells = [chosen(size, gpus) for gpus in GPUS]
        print(f"| {size} |", " | ".join(f"{plan}: {s:.0f} s" for plan, s in cells), "|")
    for factor in given.vary:
        vary(factor)


if __name__ == "__main__":
    main()
