"""Whole runs under the real supervisord, with fake programs in the place of the trainer.

Runs that nothing is sent to are started together, and looked at in the order in which they end.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from entrypoint.control import SupervisorControl
from entrypoint.exit_status import ExitStatus
from entrypoint.run_plan import TRAINER
from tests.entrypoint.plans import FOR_EVER, run_plan

FAKES = Path(__file__).parent / "fakes"
REPOSITORY = FAKES.parents[2]


@dataclass
class Scenario:
    """The fake trainer's script, other programs, fields of the plan, and further settings."""

    script: str
    programs: dict[str, list[str]] = field(default_factory=dict)
    plan: dict[str, object] = field(default_factory=dict)
    settings: str = ""


class Container:
    """A run in its own process."""

    def __init__(self, folder: Path, scenario: Scenario, write_model: Callable[..., Path]) -> None:
        model = write_model(folder / "model")
        fields = {"poll_seconds": 0.05, "stop_seconds": FOR_EVER} | scenario.plan
        self.plan = plan = run_plan(folder, **fields)
        plan.train_dir.mkdir(parents=True)
        plan.output_dir.parent.mkdir()
        plan.settings_file.write_text(
            f"[optimizer]\nmicro_batch_tokens = 8192\n{scenario.settings}"
        )
        plan.write()
        trainer = [sys.executable, str(FAKES / "trainer.py"), str(plan.train_dir)]
        trainer += [str(plan.output_dir), str(model), scenario.script]
        container = [sys.executable, str(FAKES / "container.py"), str(plan.plan_file)]
        self.process = subprocess.Popen(
            [*container, json.dumps({"trainer": trainer} | scenario.programs)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._ended: tuple[int, list[str]] | None = None

    def wait_for(self, words: str) -> None:
        """Read the log up to the first line with these words."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if words in line:
                return
        pytest.fail(f"the run ended without {words!r}: {''.join(seen)}")

    def finish(self) -> tuple[int, list[str]]:
        """Exit status and the lines of the log (those not read yet)."""
        if self._ended is None:
            output, _ = self.process.communicate()
            self._ended = self.process.returncode, output.splitlines()
        return self._ended

    @property
    def attempts(self) -> list[str]:
        """Actions of the fake trainer, attempt by attempt."""
        return (self.plan.train_dir / "attempts").read_text().split()


SERVED = {"inference_health": "http://127.0.0.1:1/health"}
VLLM = '[rollout]\nengine = "vllm_server"\nserver = "http://127.0.0.1:1"\n'
UNDISTURBED = {
    "recovers": Scenario("crash,oom,crash,publish"),
    "cannot write": Scenario("spoil", plan={"disk_seconds": 0.1}),
    "inference cannot start": Scenario(
        "alone", {"inference": ["/no/such/server"]}, SERVED, settings=VLLM
    ),
    "leaves an orphan": Scenario("orphan"),
}


@pytest.fixture(scope="module")
def containers(
    tmp_path_factory: pytest.TempPathFactory, model_writer: Callable[..., Path]
) -> Iterator[dict[str, Container]]:
    """All undisturbed runs, started at the same time."""
    started = {
        name: Container(tmp_path_factory.mktemp("run"), scenario, model_writer)
        for name, scenario in UNDISTURBED.items()
    }
    yield started
    for container in started.values():
        container.process.kill()
        container.process.wait()


@pytest.fixture
def start(
    tmp_path: Path, model_writer: Callable[..., Path]
) -> Iterator[Callable[[Scenario], Container]]:
    """Start one run of its own."""
    started: list[Container] = []

    def build(scenario: Scenario) -> Container:
        started.append(Container(tmp_path, scenario, model_writer))
        return started[-1]

    yield build
    for container in started:
        container.process.kill()
        container.process.wait()


def test_trainer_is_restarted_down_the_ladder(containers: dict[str, Container]) -> None:
    container = containers["recovers"]
    status, lines = container.finish()
    assert status == ExitStatus.OK, lines
    assert lines[-1].startswith("miner: exit 0 (ok): a model of 512 parameters, complete, is at")
    assert container.attempts == ["crash", "oom", "crash", "publish"]
    said = [line for line in lines if "again from its last checkpoint" in line]
    assert [line.partition("checkpoint, ")[2] for line in said] == [
        "as it was",
        "gradient checkpointing (model.gradient_checkpointing None -> True)",
        "half of a pass (optimizer.micro_batch_tokens 8192 -> 4096)",
    ]
    settings = tomllib.loads(container.plan.settings_file.read_text())
    assert settings["model"]["gradient_checkpointing"] is True
    assert settings["optimizer"]["micro_batch_tokens"] == 4096


def test_a_run_whose_files_cannot_be_written_ends_and_reports_it(
    containers: dict[str, Container],
) -> None:
    status, lines = containers["cannot write"].finish()
    assert status == ExitStatus.DISK, lines
    assert "the run's files cannot be written" in lines[-1]


def test_nothing_that_the_run_started_is_left_behind(containers: dict[str, Container]) -> None:
    container = containers["leaves an orphan"]
    status, lines = container.finish()
    assert status == ExitStatus.OK, lines
    assert not Path("/proc", (container.plan.train_dir / "orphan").read_text()).exists()


def test_sigterm_lets_the_trainer_publish(start: Callable[[Scenario], Container]) -> None:
    container = start(Scenario("until-asked"))
    container.wait_for("fake trainer: until-asked")
    container.process.send_signal(signal.SIGTERM)
    status, lines = container.finish()
    assert status == ExitStatus.OK, lines
    assert "asked to stop by SIGTERM" in lines[-1]


def test_trainer_that_is_asked_to_end_publishes(start: Callable[[Scenario], Container]) -> None:
    container = start(Scenario("until-asked"))
    container.wait_for("fake trainer: until-asked")
    SupervisorControl(container.plan.socket).ask_to_stop(TRAINER)
    status, lines = container.finish()
    assert status == ExitStatus.OK, lines
    assert "the trainer has published its model" in lines[-1]


def test_killed_supervisord_takes_its_programs_along(
    start: Callable[[Scenario], Container],
) -> None:
    container = start(Scenario("until-asked"))
    container.wait_for("fake trainer: until-asked")
    supervisord = int(container.plan.socket.with_suffix(".pid").read_text())
    os.kill(supervisord, signal.SIGKILL)
    status, lines = container.finish()
    assert status == ExitStatus.SUPERVISOR, lines
    # the watchdog may have had a question open
    assert re.search(r"supervisord ended unasked \(status -9\)|supervisord, asked about", lines[-1])


def test_without_an_inference_program_the_trainer_generates(
    containers: dict[str, Container],
) -> None:
    container = containers["inference cannot start"]
    status, lines = container.finish()
    assert status == ExitStatus.OK, lines
    assert any("without vLLM" in line for line in lines)
    settings = tomllib.loads(container.plan.settings_file.read_text())
    assert settings["rollout"]["engine"] == "transformers"
