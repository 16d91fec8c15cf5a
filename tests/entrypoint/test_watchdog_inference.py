"""The inference server: a lost, crashed or silent one, and the processes of one."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.control import ProgramState, StartError
from entrypoint.exit_status import ExitStatus
from entrypoint.run_plan import INFERENCE
from miner.config.run_files import BEST_FILE
from miner.config.settings import Settings
from tests.entrypoint.watched import (
    NOBODY,
    Build,
    FakeSupervisor,
    Moment,
    beats,
    exits,
    runs,
    watch,
)

VLLM = '[rollout]\nengine = "vllm_server"\nserver = "http://127.0.0.1:1"\n'
SPREAD = f"{VLLM}[optimizer]\nzero_stage = 3\n"  # the trainer's own model cannot generate
HEALTH = f"{NOBODY}/health"


def inference_crashes(supervisor: FakeSupervisor) -> None:
    """And is started again by supervisord, while the trainer goes on."""
    beats(supervisor)
    supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)


def say_when_inference_starts(supervisor: FakeSupervisor) -> None:
    """As supervisord does: a start that was asked for has a time."""
    start = supervisor.start

    def start_and_say_when(program: str) -> None:
        start(program)
        if program == INFERENCE:
            supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)

    supervisor.start = start_and_say_when  # type: ignore[method-assign]


@pytest.mark.parametrize("end", [[exits(76)], [runs] * 4], ids=["lost", "hangs"])
def test_an_inference_server_that_a_trainer_lost_is_restarted(
    fake: Build, end: list[Moment]
) -> None:
    supervisor = fake(*end, exits(0), inference_health=HEALTH)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    done = [step for step in supervisor.done if step != "stop trainer"]
    assert done == ["start trainer", "stop inference", "start inference", "start trainer"]


def test_an_inference_server_that_cannot_be_started_does_not_end_the_run(fake: Build) -> None:
    supervisor = fake(exits(76), exits(0), inference_health=HEALTH)
    start = supervisor.start

    def refuse(program: str) -> None:
        if program == INFERENCE:
            raise StartError("no such file")
        start(program)

    supervisor.start = refuse  # type: ignore[method-assign]
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED


def test_a_silent_inference_server_is_restarted_under_the_running_trainer(
    fake: Build, serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first process lives on; one that is still loading, or answers again, is left alone."""
    server = serve(503, 503, 503, 503, 503, 503, 503, 503, 200, 503, 503, 200, 200, *[503] * 7, 200)
    supervisor = fake(*[beats] * 30, exits(0), inference_health=f"{server.url}/health")
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer", "stop inference", "start inference"]
    assert f"inference is silent: {server.url}/health: HTTP 503" in capsys.readouterr().out


def test_an_inference_server_that_is_silent_repeatedly_is_abandoned(
    fake: Build, serve: Callable[..., Any]
) -> None:
    server = serve(*([200] + [503] * 8) * 4)
    supervisor = fake(*[beats] * 45, exits(0), inference_health=f"{server.url}/health")
    supervisor.plan.settings_file.write_text(VLLM)
    say_when_inference_starts(supervisor)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done.count("start inference") == 3
    assert supervisor.done[-3:] == ["stop trainer", "stop inference", "start trainer"]


@pytest.mark.parametrize("end", [[exits(76)], [runs] * 4], ids=["lost", "hangs"])
def test_an_inference_server_that_is_lost_twice_is_abandoned(
    fake: Build, end: list[Moment]
) -> None:
    supervisor = fake(*end * 2, exits(0), inference_health=HEALTH)
    supervisor.plan.settings_file.write_text(VLLM)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done[-2:] == ["stop inference", "start trainer"]
    assert supervisor.done.count("start inference") == 1
    settings = tomllib.loads(supervisor.plan.settings_file.read_text())
    assert (settings["rollout"]["engine"], settings["rollout"]["server"]) == ("transformers", "")


@pytest.mark.parametrize(("judged", "episodes"), [(False, 602), (True, 1800)])
def test_without_vllm_the_base_plays_as_many_games_as_there_is_time_for(
    fake: Build, judged: bool, episodes: int
) -> None:
    """Later models are compared with it on its games: one that was judged keeps them."""
    supervisor = fake(
        *[exits(76)] * 2,
        exits(0),
        unserved_evaluation={"episodes": 602, "time_share": 0.1, "seconds": 301.0},
    )
    supervisor.plan.settings_file.write_text(
        f"{VLLM}[evaluation]\nepisodes = 1800\nmax_reply_tokens = 256\nseconds = 40.0\n"
    )
    if judged:
        (supervisor.plan.train_dir / BEST_FILE).write_text("{}")
    watch(supervisor)
    written = Settings.load(supervisor.plan.settings_file, environ={})
    assert written.rollout.engine == "transformers"
    assert written.evaluation.episodes == episodes
    assert written.evaluation.max_reply_tokens == (256 if judged else None)
    assert written.evaluation.seconds == episodes / 2, "as many as without vLLM take"


def test_starts_that_the_watchdog_asked_for_are_not_counted_as_crashes(fake: Build) -> None:
    supervisor = fake(
        *[beats, exits(76)] * 4,
        *[beats, exits(0)],
        inference_health=HEALTH,
        max_restarts=4,
    )
    say_when_inference_starts(supervisor)
    supervisor.plan.settings_file.write_text(SPREAD)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done.count("start inference") == 4


def test_an_inference_server_that_keeps_crashing_is_abandoned(
    fake: Build, serve: Callable[..., Any]
) -> None:
    supervisor = fake(
        *[inference_crashes] * 4, runs, exits(0), inference_health=f"{serve().url}/health"
    )
    supervisor.plan.settings_file.write_text(VLLM)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer", "stop trainer", "stop inference", "start trainer"]


REPOSITORY = Path(__file__).resolve().parents[2]
SERVER = """
import pathlib, signal, subprocess, sys
engine = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"],
                          start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(engine.pid))
print("ready", flush=True)
signal.pause()
"""


def start(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    wrapper = (sys.executable, "-m", "entrypoint.inference", "--kill-after", "1000")
    return subprocess.Popen(
        [*wrapper, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("whom", ["its first process", "all of it, by SIGTERM"])
def test_what_the_server_started_ends_with_it(tmp_path: Path, whom: str) -> None:
    process = start(tmp_path, sys.executable, "-c", SERVER, str(tmp_path / "engine"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    engine = int((tmp_path / "engine").read_text())
    [server] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    if whom == "its first process":
        os.kill(int(server), signal.SIGKILL)
        expected = 128 + signal.SIGKILL
    else:
        process.terminate()
        expected = 128 + signal.SIGTERM
    assert process.wait() == expected
    assert not Path(f"/proc/{engine}").exists()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = start(tmp_path, "vllm-of-nowhere", "serve", "model")
    output, _ = process.communicate()
    assert process.returncode == 127
    assert "there is no program 'vllm-of-nowhere' on PATH" in output
