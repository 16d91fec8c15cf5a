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

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mock_env_server.faults import FaultPlan
from mock_env_server.running import RunningServer, running_server

SERVER_FAULTS: dict[str, dict[str, Any]] = {
    "server_hangs": {"rates": {"hang": 1.0}},
    "server_slow": {"latency": {"kind": "constant", "ms": 1000}},
    "server_garbage": {"rates": {"garbage_json": 1.0}},
}
PROCESS_FAULTS = ("trainer_killed", "rank_killed", "vllm_killed", "vllm_hangs")
DISK_FULL = "disk_full"
FAULTS = (*SERVER_FAULTS, "server_killed", *PROCESS_FAULTS, DISK_FULL)
FAULT_SECONDS = 5.0
"""Until a server is well again, or the disk has room; a vLLM that hangs stays so."""
SILENT_SECONDS = 10.0
"""Until the watchdog starts a silent vLLM anew, for steps of seconds; 60 in production."""
RANKS = 2
DISK_BYTES = 256 << 20
CHECKED = "CHAOS_CHECKED"
"""Variable that names the file of the episodes: each one's score, and what its replies are worth
by the rules."""
TRAINER = (sys.executable, "-m", "benchmarks.chaos", "--trainer")

SETTINGS = (
    "environment.channel=graded",
    "environment.deck_sizes=[8]",
    "rollout.engine=vllm_server",
    "rollout.groups_per_step=4",
    "rollout.episode_seconds=20",
    "evaluation.episodes=40",
    "evaluation.every_steps=10",
    "checkpoint.every_steps=2",
    "checkpoint.seconds_apart=0",
    "threads=1",
)
Plan = dict[int, str]
"""Faults by the step after which they strike."""


def draw_plan(seed: int, steps: int, fraction: float, kinds: Sequence[str] = FAULTS) -> Plan:
    """A fault after `fraction` of the steps but the last, the same for the same seed.

    No kind comes again before the others have come.
    """
    rng = random.Random(f"chaos {seed}")
    struck = sorted(rng.sample(range(1, steps), round(fraction * (steps - 1))))
    drawn = [kind for _ in range(len(struck)) for kind in rng.sample(kinds, len(kinds))]
    return dict(zip(struck, drawn, strict=False))


@dataclass
class Outcome:
    """What came of one run; times in seconds."""

    wall: float = 0.0
    counted: float = 0.0
    steps: int = 0
    asked: int = 0
    starts: int = 0
    kills: int = 0
    looks: int = 0
    unloadable: int = 0
    finished: int = 0
    false: int = 0
    lost: int = 0
    score: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """For the report."""
        score = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**self.score)
        return (
            f"{self.steps} of {self.asked} steps in {self.wall:.0f} s, "
            f"{self.counted / self.wall:.0%} of it on steps that count; {self.starts} starts of "
            f"the trainer, {self.kills} kills; score {score}; {self.finished} episodes, "
            f"{self.false} false rewards, {self.lost} lost; "
            f"not loadable {self.unloadable} of {self.looks} times"
        )


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A tmpfs at `folder`. Raises: OSError where none may be mounted."""
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        folder.rmdir()
        raise OSError(f"no tmpfs may be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def may_mount() -> bool:
    """Return whether a disk of limited size can be had."""
    try:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk"):
            return True
    except OSError:
        return False


class ChaosRun:
    """One run; its files go to `folder`, which must not be there.

    Args:
        plan: faults that strike.
        vllm: its command; None for tests/stub_vllm.
    """

    def __init__(
        self, folder: Path, base: Path, seed: int, steps: int, plan: Plan, vllm: Path | None
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder.resolve()
        self._base, self._seed, self._steps, self._vllm = base.resolve(), seed, steps, vllm
        self._faults = dict(plan)
        self._outcome = Outcome(asked=steps)
        self._well_again = 0.0

    def play(self) -> Outcome:
        """Run to the end. Raises: RuntimeError for one that ends with another status than 0."""
        from miner.distributed.launch import free_port
        from tests.entrypoint.two_programs import container

        disk = self._folder / "disk"
        self._port, printed = free_port(), self._folder / "printed"
        began = time.monotonic()
        with ExitStack() as self._stack:
            if may_mount():
                self._stack.enter_context(small_disk(disk))
            self._filler = disk / "filler"
            self._server = self._start_server()
            vllm, environment = self._prepare(disk)
            self._process = self._stack.enter_context(
                container(self._plan, vllm, TRAINER, printed, environment=environment, ranks=RANKS)
            )
            while self._process.poll() is None:
                self._look()
                time.sleep(0.5)
            self._outcome.wall = time.monotonic() - began
            if self._process.returncode != 0:
                raise RuntimeError(f"ended with {self._process.returncode}: see {printed}")
            self._outcome.starts = len(re.findall("trainer: attempt", printed.read_text()))
            return self._read()

    def _start_server(self) -> RunningServer:
        options = ("--admin", "--port", str(self._port))
        return self._stack.enter_context(running_server("faithful", *options))

    def _prepare(self, disk: Path) -> tuple[tuple[str, ...], dict[str, str]]:
        """Write the plan and the trainer's settings: vLLM's words, and both programs' variables."""
        from miner.config.settings import load_settings, to_toml
        from miner.distributed.launch import free_port
        from tests.entrypoint.plans import run_plan
        from tests.entrypoint.two_programs import words_for_a_cpu
        from tests.real_vllm.here import CPU_ENVIRONMENT, CPU_FLAGS, MEMORY_SHARE

        port = free_port()
        self._plan = run_plan(
            disk,
            socket=Path(f"/tmp/chaos-{os.getpid()}.sock"),
            servers=(self._server.base_url,),
            inference_health=f"http://127.0.0.1:{port}/health",
            inference_silent_seconds=SILENT_SECONDS,
            stop_seconds=5.0,
        )
        self._plan.train_dir.mkdir(parents=True)
        self._plan.output_dir.parent.mkdir()
        overrides = (
            f"model.path={self._base}",
            f"run_dir={self._plan.train_dir}",
            f"output.dir={self._plan.output_dir}",
            f"seed={self._seed}",
            f"optimizer.max_steps={self._steps}",
            f"rollout.server=http://127.0.0.1:{port}",
            *SETTINGS,
        )
        servers = {"ENVIRONMENT_SERVER_URLS": self._server.base_url}
        settings = load_settings(Path("recipes/tiny-8-cards.toml"), overrides, environ=servers)
        self._plan.settings_file.write_text(to_toml(settings))
        self._plan.write()
        environment = servers | {CHECKED: str(self._folder / "checked.jsonl")}
        if self._vllm is None:
            stub = (sys.executable, "-m", "tests.stub_vllm")
            return (*stub, *words_for_a_cpu(self._base, port)), environment
        words = words_for_a_cpu(self._base, port, MEMORY_SHARE)
        return (str(self._vllm), *words, *CPU_FLAGS), environment | CPU_ENVIRONMENT

    def _look(self) -> None:
        """Verify what is published; strike where a fault is due; end one that has lasted."""
        if self._plan.output_dir.exists():
            self._verify(load=False)
        if self._well_again and time.monotonic() > self._well_again:
            self._well_again = 0.0
            self._filler.unlink(missing_ok=True)
            if self._server.process.poll() is not None:
                self._server = self._start_server()
            self._ask_server("DELETE")
        steps = [record["step"] for record in _lines(self._plan.train_dir / "metrics.jsonl")]
        due = [step for step in self._faults if steps and step <= steps[-1]]
        if due and not self._well_again and self._strike(kind := self._faults[due[0]]):
            del self._faults[due[0]]
            print(f"  step {steps[-1]}: {kind}", flush=True)

    def _strike(self, kind: str) -> bool:
        """Return whether that is over; a process may be about to be started again."""
        if kind in PROCESS_FAULTS:
            if not (struck := self._processes(kind)):
                return kind.startswith("vllm")  # it was given up: the trainer's own model generates
            for process in struck:
                process.send_signal(signal.SIGSTOP if kind == "vllm_hangs" else signal.SIGKILL)
            if kind != "vllm_hangs":
                self._outcome.kills += 1
                self._verify(load=True)
            return True
        if kind == DISK_FULL:
            with self._filler.open("wb") as file:
                usage = os.statvfs(self._filler)
                os.posix_fallocate(file.fileno(), 0, usage.f_bavail * usage.f_frsize)
        elif kind == "server_killed":
            self._server.process.kill()
            self._server.process.wait()
        else:
            self._ask_server("PUT", SERVER_FAULTS[kind])
        self._well_again = time.monotonic() + FAULT_SECONDS
        return True

    def _processes(self, kind: str) -> list[psutil.Process]:
        """Processes that a fault strikes, none while they are not there."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        words = {process: _words(process) for process in below}
        if kind in ("vllm_killed", "vllm_hangs"):
            wrappers = [each for each in below if "entrypoint.inference" in words[each]]
            inside = [child for each in wrappers for child in each.children(recursive=True)]
            return inside if kind == "vllm_hangs" else inside[:1]
        trainer = [each for each in below if "--trainer" in words[each]]
        launcher = [each for each in trainer if "--processes" in words[each]]
        ranks = [each for each in trainer if each not in launcher]
        return launcher if kind == "trainer_killed" else ranks[-1:]

    def _ask_server(self, method: str, plan: dict[str, Any] | None = None) -> None:
        body = None if plan is None else FaultPlan.model_validate(plan).model_dump_json().encode()
        url = f"{self._server.base_url}/admin/faults"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method=method)
        urllib.request.urlopen(request, timeout=30).close()

    def _verify(self, *, load: bool) -> None:
        self._outcome.looks += 1
        if trouble := defect(self._plan.output_dir, load=load):
            self._outcome.unloadable += 1
            print(f"  not loadable: {trouble}", flush=True)

    def _read(self) -> Outcome:
        outcome, run = self._outcome, self._plan.train_dir
        seconds = {step["step"]: step["seconds"] for step in _lines(run / "metrics.jsonl")}
        outcome.counted = sum(seconds.values())  # of a step that was repeated, the last time
        outcome.steps = len(seconds)
        checked = _lines(self._folder / "checked.jsonl")
        outcome.lost = sum(each["score"] is None for each in checked)
        outcome.finished = len(checked) - outcome.lost
        outcome.false = sum(each["score"] != each["true"] for each in checked)
        held_out = _lines(run / "evaluations.jsonl")
        published = [record["score"] for record in held_out if record.get("published")]
        outcome.score = max(published, key=lambda score: score["mean"])
        shutil.copy(run / "metrics.jsonl", self._folder)
        return outcome


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []


def _lines(file: Path) -> list[dict[str, Any]]:
    """The records of a file; a kill or a full disk may have cut some off."""
    if not file.exists():
        return []
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")]
    return [json.loads(line) for line in whole]


def defect(published: Path, *, load: bool) -> str:
    """Why the published folder is no model; "" for one that is."""
    from miner.publishing.errors import PublishingError
    from miner.publishing.verify import verify_model

    try:
        verify_model(published, load=load)
    except PublishingError as error:
        return str(error)
    return ""


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


def train_checked(arguments: Sequence[str]) -> None:
    """`python -m miner train`, with each finished episode replayed by the rules, in all ranks."""
    from miner.__main__ import main as miner
    from miner.cli import train as command
    from miner.environments import EpisodeTask
    from miner.rollout.scheduler import Scheduler
    from miner.rollout.trajectory import Trajectory

    play, launch = Scheduler._member, command.launch

    def keep(record: dict[str, Any]) -> None:
        with open(os.environ[CHECKED], "a") as file:
            file.write(json.dumps(record) + "\n")

    async def checked(scheduler: Scheduler, task: EpisodeTask) -> Any:
        outcome = await play(scheduler, task)
        finished = isinstance(outcome, Trajectory)
        record = {
            "score": outcome.score if finished else None,
            "true": await true_score(outcome) if finished else None,
        }
        keep(record)
        return outcome

    Scheduler._member = checked  # type: ignore[method-assign, assignment]
    command.launch = lambda count, command: launch(count, [*TRAINER, *command[4:]])
    sys.argv = ["miner", "train", *arguments]
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
    parser.add_argument("--vllm", type=Path, help="its command, in place of tests/stub_vllm")
    parser.add_argument("--kills", type=int, default=0, help="kill publishers alone, so many times")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"))
    asked = parser.parse_args(arguments)
    if min(asked.seeds) < 0 or len(set(asked.seeds)) < len(asked.seeds):
        parser.error(f"--seeds {asked.seeds}: expected different numbers from 0 on")
    if not 2 <= asked.steps <= 10_000:
        parser.error(f"--steps {asked.steps}: expected 2 to 10,000")
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
    if sys.argv[1:2] == ["--trainer"]:
        train_checked(sys.argv[2:])
        return
    asked = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends what it started
    from transformers.utils.logging import disable_progress_bar

    from miner.cli.demo import CACHE
    from miner.tiny_model.build import base_recipe_for, cached_tiny_model

    disable_progress_bar()
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
            run = ChaosRun(folder / name, base, seed, asked.steps, faults, asked.vllm)
            outcome = run.play()
            walls.append(outcome.wall)
            print(f"seed {seed}, {len(faults)} faults: {outcome.line()}", flush=True)
        print(f"seed {seed}: effective training time {walls[0] / walls[1]:.0%}", flush=True)


if __name__ == "__main__":
    main()
