"""Training under faults drawn by a seed, beside the same run without: what it costs, and the score.

`python -m benchmarks.chaos --seeds 0 1 2`

The demo's tiny base learns Goofspiel with eight cards through `/evaluate` of the mock server. Each
step meets a fault with probability `--fraction`: the environment server is killed and started
again, hangs, is slow or answers garbage; the trainer is killed by SIGKILL. A trainer that ended is
started again, as the orchestrator does. Each finished episode is replayed by the rules in the
trainer's process, so that a reward that a fault has made up shows; the published folder is verified
all the time, and loaded after each kill. Effective training time is what the run without faults
took, as a share of the other's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mock_env_server.faults import FaultPlan
from mock_env_server.running import RunningServer, running_server

SERVER_FAULTS: dict[str, dict[str, Any]] = {
    "server_hangs": {"rates": {"hang": 1.0}},
    "server_slow": {"latency": {"kind": "constant", "ms": 1000}},
    "server_garbage": {"rates": {"garbage_json": 1.0}},
}
FAULTS = (*SERVER_FAULTS, "server_killed", "trainer_killed")
FAULT_SECONDS = 5.0
"""Until a server is well again."""
MOST_STARTS = 20
CHECKED = "checked.jsonl"
"""In run_dir: the score of each finished episode, and what its replies are worth by the rules."""

SETTINGS = (
    "environment.channel=graded",
    "environment.deck_sizes=[8]",
    "rollout.groups_per_step=4",
    "rollout.episode_seconds=20",
    "evaluation.episodes=40",
    "evaluation.every_steps=10",
    "checkpoint.every_steps=2",
    "threads=1",
)
Plan = dict[int, str]
"""Faults by the step after which they strike."""


def draw_plan(seed: int, steps: int, fraction: float, kinds: Sequence[str] = FAULTS) -> Plan:
    """At most one fault after each step but the last, the same for the same seed."""
    rng = random.Random(f"chaos {seed}")
    drawn = [(rng.random(), rng.choice(kinds)) for _ in range(1, steps)]
    return {step: kind for step, (chance, kind) in enumerate(drawn, 1) if chance < fraction}


@dataclass
class Outcome:
    """What came of one run; times in seconds."""

    wall: float = 0.0
    counted: float = 0.0
    starts: int = 0
    kills: int = 0
    looks: int = 0
    unloadable: int = 0
    finished: int = 0
    false: int = 0
    lost: int = 0
    score: dict[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Share of the time that was spent on steps that count, waits for servers included."""
        return self.counted / self.wall

    def line(self) -> str:
        """For the report."""
        score = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**self.score)
        return (
            f"{self.wall:.0f} s, {self.share:.0%} on steps that count; {self.starts} starts, "
            f"{self.kills} kills; score {score}; {self.finished} episodes, {self.false} false "
            f"rewards, {self.lost} lost; not loadable {self.unloadable} of {self.looks} times"
        )


class ChaosRun:
    """One run in `folder`, which is made."""

    def __init__(
        self, folder: Path, name: str, base: Path, seed: int, steps: int, plan: Plan
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run_dir, self._published = folder / name, folder / f"{name}-model"
        self._overrides = [
            *("--config", "recipes/tiny-8-cards.toml"),
            f"model.path={base}",
            f"run_dir={self._run_dir}",
            f"output.dir={self._published}",
            f"seed={seed}",
            f"optimizer.max_steps={steps}",
            *SETTINGS,
        ]
        self._plan = dict(plan)
        self._outcome = Outcome()
        self._well_again = 0.0

    def play(self) -> Outcome:
        """Run to the end. Raises: RuntimeError for a run that does not come to one."""
        from miner.distributed.launch import free_port

        self._port = free_port()
        began = time.monotonic()
        with ExitStack() as self._servers:
            self._server = self._start_server()
            while (status := self._attempt()) != 0:
                if self._outcome.starts >= MOST_STARTS:
                    raise RuntimeError(f"ended with {status}, {MOST_STARTS} times: {self._run_dir}")
        self._outcome.wall = time.monotonic() - began
        return self._read()

    def _start_server(self) -> RunningServer:
        options = ("--admin", "--port", str(self._port))
        return self._servers.enter_context(running_server("faithful", *options))

    def _attempt(self) -> int:
        self._outcome.starts += 1
        environ = os.environ | {"ENVIRONMENT_SERVER_URLS": self._server.base_url}
        command = [sys.executable, "-m", "benchmarks.chaos", "--trainer", *self._overrides]
        log = self._run_dir.with_suffix(".log")
        with log.open("ab") as sink:
            trainer = subprocess.Popen(command, env=environ, stdout=sink, stderr=sink)
            try:
                while trainer.poll() is None:
                    self._look(trainer)
                    time.sleep(0.2)
            finally:
                trainer.kill()
                trainer.wait()
        return trainer.returncode

    def _look(self, trainer: subprocess.Popen[bytes]) -> None:
        """Verify what is published; strike where a fault is due; end one that has lasted."""
        if self._published.exists():
            self._verify(load=False)
        if self._well_again and time.monotonic() > self._well_again:
            self._well_again = 0.0
            if self._server.process.poll() is not None:
                self._server = self._start_server()
            self._faults("DELETE")
        steps = [record["step"] for record in _lines(self._run_dir / "metrics.jsonl")]
        due = [step for step in self._plan if steps and step <= steps[-1]]
        if due and not self._well_again:
            self._strike(self._plan.pop(due[0]), trainer)

    def _strike(self, kind: str, trainer: subprocess.Popen[bytes]) -> None:
        print(f"  {kind}", flush=True)
        if kind == "trainer_killed":
            trainer.kill()
            trainer.wait()
            self._outcome.kills += 1
            self._verify(load=True)
            return
        if kind == "server_killed":
            self._server.process.kill()
            self._server.process.wait()
        else:
            self._faults("PUT", SERVER_FAULTS[kind])
        self._well_again = time.monotonic() + FAULT_SECONDS

    def _faults(self, method: str, plan: dict[str, Any] | None = None) -> None:
        body = None if plan is None else FaultPlan.model_validate(plan).model_dump_json().encode()
        url = f"{self._server.base_url}/admin/faults"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method=method)
        urllib.request.urlopen(request, timeout=30).close()

    def _verify(self, *, load: bool) -> None:
        from miner.publishing.errors import PublishingError
        from miner.publishing.verify import verify_model

        self._outcome.looks += 1
        try:
            verify_model(self._published, load=load)
        except PublishingError as error:
            self._outcome.unloadable += 1
            print(f"  not loadable: {error}", flush=True)

    def _read(self) -> Outcome:
        outcome = self._outcome
        seconds = {
            step["step"]: step["seconds"] for step in _lines(self._run_dir / "metrics.jsonl")
        }
        outcome.counted = sum(seconds.values())  # of a step that was repeated, the last time
        checked = _lines(self._run_dir / CHECKED)
        outcome.lost = sum(each["score"] is None for each in checked)
        outcome.finished = len(checked) - outcome.lost
        outcome.false = sum(each["score"] != each["true"] for each in checked)
        held_out = _lines(self._run_dir / "evaluations.jsonl")
        published = [record["score"] for record in held_out if record.get("published")]
        outcome.score = max(published, key=lambda score: score["mean"])
        return outcome


def _lines(file: Path) -> list[dict[str, Any]]:
    """The records of a file; a kill may have cut the last one off."""
    if not file.exists():
        return []
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")]
    return [json.loads(line) for line in whole]


def train_checked(overrides: Sequence[str]) -> None:
    """`python -m miner train`, with each finished episode replayed by the rules."""
    from miner.__main__ import main as miner
    from miner.environments import EpisodeTask
    from miner.rollout.scheduler import Scheduler
    from miner.rollout.trajectory import Trajectory

    run_dir = next(Path(each[8:]) for each in overrides if each.startswith("run_dir="))
    play = Scheduler._member

    async def checked(scheduler: Scheduler, task: EpisodeTask) -> Any:
        outcome = await play(scheduler, task)
        finished = isinstance(outcome, Trajectory)
        record = {
            "score": outcome.score if finished else None,
            "true": await true_score(outcome) if finished else None,
        }
        with (run_dir / CHECKED).open("a") as file:
            file.write(json.dumps(record) + "\n")
        return outcome

    Scheduler._member = checked  # type: ignore[method-assign, assignment]
    sys.argv = ["miner", "train", *overrides]
    miner()


async def true_score(trajectory: Any) -> float | None:
    """What the replies of an episode are worth by the rules; None if they do not end it."""
    from miner.environments.builtin import BuiltinSource

    environment = BuiltinSource({}).open()
    await environment.reset(trajectory.task)
    score = None
    for turn in trajectory.turns:
        score = (await environment.step(turn.reply)).score
    await environment.close()
    return score


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what cannot be meant ends with 2 before anything is started."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", allow_abbrev=False)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of a run")
    parser.add_argument("--fraction", type=float, default=0.1, help="faults a step")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    asked = parser.parse_args(arguments)
    if min(asked.seeds) < 0 or len(set(asked.seeds)) < len(asked.seeds):
        parser.error(f"--seeds {asked.seeds}: expected different numbers from 0 on")
    if not 2 <= asked.steps <= 10_000:
        parser.error(f"--steps {asked.steps}: expected 2 to 10,000")
    if not 0 < asked.fraction <= 1:
        parser.error(f"--fraction {asked.fraction}: expected more than 0 and at most 1")
    for seed in asked.seeds:
        if not draw_plan(seed, asked.steps, asked.fraction, asked.faults):
            parser.error(f"seed {seed} draws no fault: raise --steps or --fraction")
        if (asked.out / str(seed)).exists():
            parser.error(f"{asked.out / str(seed)} is there already: name another --out")
    return asked


def main() -> None:
    """Both runs of each seed, one line each."""
    if sys.argv[1:2] == ["--trainer"]:
        train_checked(sys.argv[2:])
        return
    asked = parse()
    from miner.cli.demo import CACHE
    from miner.tiny_model.build import base_recipe_for, cached_tiny_model

    base = cached_tiny_model(CACHE, recipe=base_recipe_for((8,)))
    for seed in asked.seeds:
        folder = asked.out / str(seed)
        plan = draw_plan(seed, asked.steps, asked.fraction, asked.faults)
        walls = []
        for name, faults in (("plain", {}), ("chaos", plan)):
            outcome = ChaosRun(folder, name, base, seed, asked.steps, faults).play()
            walls.append(outcome.wall)
            print(f"seed {seed}, {len(faults)} faults: {outcome.line()}", flush=True)
        print(f"seed {seed}: effective training time {walls[0] / walls[1]:.0%}", flush=True)


if __name__ == "__main__":
    main()
