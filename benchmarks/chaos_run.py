"""One training run under faults: the processes, what strikes them, and what came of it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mock_env_server.faults import FaultPlan
from mock_env_server.running import RunningServer, running_server

SERVER_FAULTS: dict[str, dict[str, Any]] = {
    "server_hangs": {"rates": {"hang": 1.0}},
    "server_slow": {"latency_ms": 1000},
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
GROUPS = 4
"""Of a step, by default; each has 8 games."""
DISK_BYTES = 256 << 20
CHECKED = "CHAOS_CHECKED"
"""Variable that names the file of the episodes: each one's score, and what its replies are worth
by the rules."""
TRAINER = (sys.executable, "-m", "benchmarks.chaos_trainer")
SETTINGS = (
    "environment.channel=graded",
    "environment.deck_sizes=[8]",
    "rollout.engine=vllm_server",
    "rollout.episode_seconds=20",
    "evaluation.episodes=40",
    "evaluation.every_steps=10",
    "checkpoint.every_steps=2",
    "checkpoint.seconds_apart=0",
    "threads=1",
)
Plan = dict[int, str]
"""Faults by the step after which they strike."""


@dataclass
class Outcome:
    """Outcome of one run; times in seconds.

    Attributes:
        counted: spent on steps that count, waits for servers in them included.
        again: episodes that broke off, and were played again as far as their step needed them.
        lost: episodes that a step went without.
        score: of the last held-out games.
    """

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
    again: int = 0
    lost: int = 0
    score: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        """For the report."""
        score = "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**self.score)
        return (
            f"{self.steps} of {self.asked} steps in {self.wall:.0f} s, "
            f"{self.counted / self.wall:.0%} of it on steps that count; {self.starts} starts of "
            f"the trainer, {self.kills} kills; score {score}; {self.finished} episodes, "
            f"{self.false} false rewards, {self.again} broken off, {self.lost} lost; "
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
        groups: of a step.
    """

    def __init__(
        self,
        folder: Path,
        base: Path,
        seed: int,
        steps: int,
        plan: Plan,
        vllm: Path | None,
        groups: int = GROUPS,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder = folder.resolve()
        self._base, self._seed, self._steps, self._vllm = base.resolve(), seed, steps, vllm
        self._groups = groups
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
        from miner.config.settings import Settings, to_toml
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
            f"rollout.groups_per_step={self._groups}",
            f"rollout.server=http://127.0.0.1:{port}",
            *SETTINGS,
        )
        servers = {"ENVIRONMENT_SERVER_URLS": self._server.base_url}
        settings = Settings.load(Path("recipes/tiny-8-cards.toml"), overrides, environ=servers)
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
        trainer = [each for each in below if TRAINER[-1] in words[each]]
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
        steps = _lines(run / "metrics.jsonl")
        seconds = {step["step"]: step["seconds"] for step in steps}
        lost = {step["step"]: step["lost_episodes"] for step in steps}
        outcome.counted = sum(seconds.values())  # of a step that was repeated, the last time
        outcome.steps = len(seconds)
        checked = _lines(self._folder / "checked.jsonl")
        outcome.again = sum(each["score"] is None for each in checked)
        outcome.finished = len(checked) - outcome.again
        outcome.lost = sum(lost.values())
        outcome.false = sum(each["score"] != each["true"] for each in checked)
        held_out = _lines(run / "evaluations.jsonl")
        outcome.score = held_out[-1]["score"]
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
    """Reason why the published folder is not a model; "" for one that is."""
    from miner.publishing.errors import PublishingError
    from miner.publishing.verify import verify_model

    try:
        verify_model(published, load=load)
    except PublishingError as error:
        return str(error)
    return ""
