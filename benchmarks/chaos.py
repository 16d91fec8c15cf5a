"""Training under faults drawn by a seed, beside the same run without: what it costs, and the score.

`python -m benchmarks.chaos --seeds 0 1 2`, `python -m benchmarks.chaos --kills 100`

The demo's tiny base learns Goofspiel with eight cards through `/evaluate` of the mock server: two
trainer processes and an inference server under the orchestrator's supervisord and watchdog, as in a
container. The inference server is tests/stub_vllm, or vLLM itself (`--vllm`). After a `--fraction`
of the steps a fault strikes. Each finished episode is replayed by the rules in the trainer's
process, so that a reward that a fault has made up shows; the published folder is verified all the
time, and loaded after each kill. Effective training time is what the run without faults took, as a
share of the other's.

`--kills` publishes without end in a child process, kills it at that many drawn instants, and loads
the folder after each.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos_run import (
    DISK_FULL,
    FAULTS,
    GROUPS,
    RANKS,
    ChaosRun,
    Plan,
    defect,
    may_mount,
)


def draw_plan(seed: int, steps: int, fraction: float, kinds: Sequence[str] = FAULTS) -> Plan:
    """A fault after `fraction` of the steps but the last, the same for the same seed.

    No kind comes again before the others have come.
    """
    rng = random.Random(f"chaos {seed}")
    struck = sorted(rng.sample(range(1, steps), round(fraction * (steps - 1))))
    drawn = [kind for _ in range(len(struck)) for kind in rng.sample(kinds, len(kinds))]
    return dict(zip(struck, drawn, strict=False))


def kill_publishers(folder: Path, base: Path, kills: int, seed: int) -> int:
    """Kill a process that publishes without end, `kills` times; how often no model was there."""
    from tests.publishing.killed_publisher import loop

    published, moments, broken = folder / "model", random.Random(f"kills {seed}"), 0
    for number in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                sys.stdout = os.fdopen(writing, "w")  # to which it writes that there is a model
                loop(published, [base, base])
            finally:
                os._exit(1)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        time.sleep(moments.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if trouble := defect(published, load=True):
            broken += 1
            print(f"  kill {number}: not loadable: {trouble}", flush=True)
    return broken


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what cannot be meant ends with 2 before anything is started."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run")
    parser.add_argument(
        "--groups",
        type=int,
        default=GROUPS,
        help="of a step: more make it longer, as on GPUs, where a fault costs no more than here",
    )
    parser.add_argument("--fraction", type=float, default=0.1, help="faults a step")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--vllm", type=Path, help="its command, in place of tests/stub_vllm")
    parser.add_argument("--kills", type=int, default=0, help="kill publishers alone, so many times")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    asked = parser.parse_args(arguments)
    if min(asked.seeds) < 0 or len(set(asked.seeds)) < len(asked.seeds):
        parser.error(f"--seeds {asked.seeds}: expected different numbers from 0 on")
    if not 2 <= asked.steps <= 10_000:
        parser.error(f"--steps {asked.steps}: expected 2 to 10,000")
    if not 2 <= asked.groups <= 256 or asked.groups % RANKS:
        parser.error(f"--groups {asked.groups}: expected an even number from 2 to 256")
    if not 0 < asked.fraction <= 1:
        parser.error(f"--fraction {asked.fraction}: expected more than 0 and at most 1")
    if not 0 <= asked.kills <= 100_000:
        parser.error(f"--kills {asked.kills}: expected 0 to 100,000")
    if asked.vllm and not os.access(asked.vllm, os.X_OK):
        parser.error(f"--vllm {asked.vllm} is no program: .venv-vllm/bin/vllm by make setup-vllm")
    if DISK_FULL in asked.faults and not asked.kills and not may_mount():
        print(f"{DISK_FULL} is left out: no tmpfs may be mounted here (it takes root's rights)")
        asked.faults.remove(DISK_FULL)
        if not asked.faults:
            parser.error("--faults: none is left")
    for seed in asked.seeds:
        if not asked.kills and not draw_plan(seed, asked.steps, asked.fraction, asked.faults):
            parser.error(f"seed {seed} draws no fault: raise --steps or --fraction")
        if (asked.out / str(seed)).exists():
            parser.error(f"{asked.out / str(seed)} is there already: name another --out")
    return asked


def main() -> None:
    """Both runs of each seed, one line each."""
    asked = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what it started
    from miner.cli.demo import CACHE
    from miner.heavy_imports import quiet_libraries
    from miner.tiny_model.build import base_recipe_for, cached_tiny_model

    quiet_libraries()
    base = cached_tiny_model(CACHE, recipe=base_recipe_for((8,)))
    for seed in asked.seeds:
        folder = asked.out / str(seed)
        if asked.kills:
            broken = kill_publishers(folder, base, asked.kills, seed)
            print(f"seed {seed}: loadable after {asked.kills - broken} of {asked.kills} kills")
            continue
        plan = draw_plan(seed, asked.steps, asked.fraction, asked.faults)
        walls = []
        for name, faults in (("plain", {}), ("chaos", plan)):
            run = ChaosRun(folder / name, base, seed, asked.steps, faults, asked.vllm, asked.groups)
            outcome = run.play()
            walls.append(outcome.wall)
            print(f"seed {seed}, {len(faults)} faults: {outcome.line()}", flush=True)
        print(f"seed {seed}: effective training time {walls[0] / walls[1]:.0%}", flush=True)


if __name__ == "__main__":
    main()
