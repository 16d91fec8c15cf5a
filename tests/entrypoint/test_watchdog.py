"""The watchdog's decisions, with a fake supervisord and a clock that the test moves."""

from __future__ import annotations

import json
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrypoint.control import ControlError, ProgramState, StartError
from entrypoint.exit_status import ExitStatus
from entrypoint.run_plan import INFERENCE, TRAINER, RunPlan
from entrypoint.watchdog import StopRequested, Watchdog, describe_silence
from miner.config.heartbeat import Heartbeat, read_heartbeat

NOBODY = "http://127.0.0.1:1"
RUNNING = ProgramState("RUNNING", 0, 1.0)
Moment = Callable[["FakeSupervisor"], None]


class FakeSupervisor:
    """Control and clock: each look at the trainer takes ten seconds and plays the next moment."""

    def __init__(self, plan: RunPlan, moments: list[Moment]) -> None:
        self.plan = plan
        self.now = plan.started_at
        self.moments = moments
        self.states = {INFERENCE: RUNNING, TRAINER: ProgramState("STOPPED", 0, 0.0)}
        self.done: list[str] = []
        self.stop_event = threading.Event()

    def clock(self) -> float:
        return self.now

    def state(self, program: str) -> ProgramState:
        if program == TRAINER:
            self.now += 10
            if self.moments:
                self.moments.pop(0)(self)
        return self.states[program]

    def start(self, program: str) -> None:
        self.done.append(f"start {program}")
        self.states[program] = RUNNING

    def ask_to_stop(self, program: str) -> None:
        self.done.append(f"ask {program}")

    def stop(self, program: str) -> None:
        self.done.append(f"stop {program}")
        self.states[program] = ProgramState("STOPPED", -1, 0.0)


def runs(fake: FakeSupervisor) -> None:
    """Nothing happens."""


def beats(fake: FakeSupervisor) -> None:
    beat = {"time": fake.now, "phase": "rollout", "step": 3}
    fake.plan.heartbeat_file.write_text(json.dumps(beat))


def exits(status: int) -> Moment:
    def moment(fake: FakeSupervisor) -> None:
        fake.states[TRAINER] = ProgramState("EXITED", status, 0.0)

    return moment


def is_asked_to_stop(fake: FakeSupervisor) -> None:
    fake.stop_event.set()


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., FakeSupervisor]:
    def build(*moments: Moment, **fields: Any) -> FakeSupervisor:
        plan = RunPlan.model_validate(
            {
                "run_dir": tmp_path,
                "output_dir": tmp_path / "out",
                "socket": tmp_path / "s",
                "started_at": 1000,
                "trainer_ends_at": 5000,
                "ends_at": 5100,
                "kill_at": 5200,
                "stall_seconds": 25,
                "poll_seconds": 0.001,
                "servers_seconds": 0.05,
                **fields,
            }
        )
        plan.train_dir.mkdir()
        plan.settings_file.write_text("[optimizer]\nmicro_batch_tokens = 8192\n")
        return FakeSupervisor(plan, list(moments))

    return build


def watch(fake: FakeSupervisor) -> tuple[ExitStatus, str]:
    outcome = Watchdog(fake.plan, fake, fake.stop_event, fake.clock).run()
    return outcome.status, outcome.message


Build = Callable[..., FakeSupervisor]


def test_success_is_the_end(fake: Build) -> None:
    supervisor = fake(runs, exits(0))
    assert watch(supervisor) == (ExitStatus.UNVERIFIED, "the trainer has published its model")
    assert supervisor.done == ["start trainer"]


def test_heartbeats_keep_the_trainer_alive(fake: Build) -> None:
    supervisor = fake(*[beats] * 20, exits(0))
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer"]


def test_silence_stops_the_trainer_and_says_what_hangs(
    fake: Build, serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    servers = (NOBODY, serve().url)
    supervisor = fake(beats, runs, runs, runs, exits(0), servers=servers)
    watch(supervisor)
    assert supervisor.done == ["start trainer", "stop trainer", "start trainer"]
    said = capsys.readouterr().out
    assert "no heartbeat for 30 s (limit 25 s) in phase 'rollout' at step 3" in said
    assert f"does not answer: {NOBODY}/health" in said
    assert servers[1] not in said


def test_time_over_asks_first_and_then_stops(fake: Build) -> None:
    supervisor = fake(*[beats] * 50, trainer_ends_at=1100, ends_at=1150)
    status, message = watch(supervisor)
    assert status is ExitStatus.DEADLINE
    assert "did not end when asked to" in message
    assert supervisor.done == ["start trainer", "ask trainer", "stop trainer"]


def test_a_trainer_asked_to_end_is_not_restarted(fake: Build) -> None:
    supervisor = fake(*[beats] * 11, exits(1), trainer_ends_at=1100)
    status, message = watch(supervisor)
    assert status is ExitStatus.DEADLINE
    assert "asked to end, it ended with exit status 1" in message
    assert supervisor.done == ["start trainer", "ask trainer"]


@pytest.mark.parametrize(
    ("first", "starts"), [([], 1), ([beats], 2)], ids=["settings refused", "settings were accepted"]
)
def test_status_2_is_final_only_before_the_first_heartbeat(
    fake: Build, first: list[Moment], starts: int
) -> None:
    supervisor = fake(*first, exits(2), exits(0))
    watch(supervisor)
    assert supervisor.done.count("start trainer") == starts


def test_a_base_that_is_refused_twice_is_not_tried_again(fake: Build) -> None:
    supervisor = fake(beats, exits(2), beats, exits(2), exits(0))
    status, message = watch(supervisor)
    assert status is ExitStatus.TRAINER
    assert "the trainer cannot start: it refused its settings" in message
    assert supervisor.done.count("start trainer") == 2


def test_out_of_memory_rewrites_the_settings(fake: Build) -> None:
    supervisor = fake(exits(75), exits(0))
    watch(supervisor)
    assert "micro_batch_tokens = 4096" in supervisor.plan.settings_file.read_text()


def test_lost_servers_are_waited_for(fake: Build, serve: Callable[..., Any]) -> None:
    server = serve(503, 503, 200)
    supervisor = fake(exits(69), exits(0), servers=(server.url,), servers_seconds=30)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert server.asked == 3


def test_servers_that_stay_lost_end_the_run(fake: Build) -> None:
    status, message = watch(fake(exits(69), servers=(NOBODY,)))
    assert status is ExitStatus.ENVIRONMENT
    assert "no environment server answers any more" in message


VLLM = '[rollout]\nengine = "vllm_server"\nserver = "http://127.0.0.1:1"\n'
SPREAD = f"{VLLM}[optimizer]\nzero_stage = 3\n"  # the trainer's own model cannot generate
COLOCATED = '[rollout]\nengine = "vllm_colocated"\nmemory_share = 0.4\n'
HEALTH = f"{NOBODY}/health"


@pytest.mark.parametrize("end", [[exits(76)], [runs] * 4], ids=["lost", "hangs"])
def test_an_inference_server_that_a_trainer_gave_up_on_is_started_anew(
    fake: Build, end: list[Moment]
) -> None:
    supervisor = fake(*end, exits(0), inference_health=HEALTH)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    done = [step for step in supervisor.done if step != "stop trainer"]
    assert done == ["start trainer", "stop inference", "start inference", "start trainer"]


def test_a_lost_inference_server_ends_the_run_where_the_trainer_cannot_do_without(
    fake: Build,
) -> None:
    lost = [exits(76)] * 3
    supervisor = fake(*lost, inference_health=HEALTH, max_restarts=2)
    supervisor.plan.settings_file.write_text(SPREAD)
    status, message = watch(supervisor)
    assert status is ExitStatus.INFERENCE
    assert "failed 3 times, at last it lost its inference server" in message
    assert supervisor.done.count("start inference") == 2


def test_an_inference_server_that_cannot_be_started_does_not_end_the_run(fake: Build) -> None:
    supervisor = fake(exits(76), exits(0), inference_health=HEALTH)
    start = supervisor.start

    def refuse(program: str) -> None:
        if program == INFERENCE:
            raise StartError("no such file")
        start(program)

    supervisor.start = refuse  # type: ignore[method-assign]
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED


def test_inference_that_keeps_crashing_ends_the_run(fake: Build, serve: Callable[..., Any]) -> None:
    def crashes(supervisor: FakeSupervisor) -> None:
        beats(supervisor)
        supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)

    supervisor = fake(*[crashes] * 10, inference_health=f"{serve().url}/health")
    status, message = watch(supervisor)
    assert status is ExitStatus.INFERENCE
    assert "did not stay up" in message
    assert supervisor.done == ["start trainer", "stop trainer"]


def test_an_inference_server_that_falls_silent_is_started_anew_beneath_the_trainer(
    fake: Build, serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first process lives on; one that is still loading, or answers again, is left alone."""
    server = serve(503, 503, 503, 503, 503, 503, 503, 503, 200, 503, 503, 200, 200, *[503] * 7, 200)
    supervisor = fake(*[beats] * 30, exits(0), inference_health=f"{server.url}/health")
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer", "stop inference", "start inference"]
    assert f"inference is silent: {server.url}/health: HTTP 503" in capsys.readouterr().out


def test_an_inference_server_that_falls_silent_again_and_again_is_given_up(
    fake: Build, serve: Callable[..., Any]
) -> None:
    server = serve(*([200] + [503] * 8) * 4)
    supervisor = fake(*[beats] * 45, exits(0), inference_health=f"{server.url}/health")
    supervisor.plan.settings_file.write_text(VLLM)
    start = supervisor.start

    def start_and_say_when(program: str) -> None:
        start(program)
        if program == INFERENCE:
            supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)

    supervisor.start = start_and_say_when  # type: ignore[method-assign]
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done.count("start inference") == 3
    assert supervisor.done[-3:] == ["stop trainer", "stop inference", "start trainer"]


@pytest.mark.parametrize("end", [[exits(76)], [runs] * 4], ids=["lost", "hangs"])
def test_an_inference_server_in_trouble_twice_gets_its_weights_by_a_file(
    fake: Build, end: list[Moment]
) -> None:
    supervisor = fake(*end * 2, exits(0), inference_health=HEALTH)
    supervisor.plan.settings_file.write_text(SPREAD)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done[-3:] == ["stop inference", "start inference", "start trainer"]
    settings = tomllib.loads(supervisor.plan.settings_file.read_text())
    assert settings["rollout"]["engine"] == "vllm_server"
    assert settings["rollout"]["weights"] == "file"


def test_an_inference_server_that_is_lost_three_times_is_given_up(fake: Build) -> None:
    supervisor = fake(*[exits(76)] * 3, exits(0), inference_health=HEALTH, max_restarts=3)
    supervisor.plan.settings_file.write_text(VLLM)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done[-2:] == ["stop inference", "start trainer"]
    assert supervisor.done.count("start inference") == 2
    settings = tomllib.loads(supervisor.plan.settings_file.read_text())
    assert (settings["rollout"]["engine"], settings["rollout"]["server"]) == ("transformers", "")


def test_starts_that_the_watchdog_asked_for_are_not_counted_as_crashes(fake: Build) -> None:
    supervisor = fake(
        *[beats, exits(76)] * 4,
        *[beats, exits(0)],
        inference_health=HEALTH,
        max_restarts=4,
    )
    start = supervisor.start

    def start_and_say_when(program: str) -> None:
        start(program)
        if program == INFERENCE:
            supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)

    supervisor.start = start_and_say_when  # type: ignore[method-assign]
    supervisor.plan.settings_file.write_text(SPREAD)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done.count("start inference") == 4


def test_an_inference_server_that_keeps_crashing_is_given_up(
    fake: Build, serve: Callable[..., Any]
) -> None:
    def crashes(supervisor: FakeSupervisor) -> None:
        beats(supervisor)
        supervisor.states[INFERENCE] = ProgramState("RUNNING", 0, supervisor.now)

    supervisor = fake(*[crashes] * 4, runs, exits(0), inference_health=f"{serve().url}/health")
    supervisor.plan.settings_file.write_text(VLLM)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer", "stop trainer", "stop inference", "start trainer"]


def test_an_engine_that_crashes_the_trainer_is_given_up_after_the_third_time(fake: Build) -> None:
    supervisor = fake(exits(1), exits(1), exits(1), exits(0))
    supervisor.plan.settings_file.write_text(COLOCATED)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer"] * 4
    settings = tomllib.loads(supervisor.plan.settings_file.read_text())
    assert settings["rollout"]["engine"] == "transformers"


def test_locks_of_killed_builds_are_gone_when_an_attempt_starts(
    fake: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lock = tmp_path / "extensions/py311_cpu/deepspeed_shm_comm/lock"
    library = lock.with_name("deepspeed_shm_comm.so")
    lock.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))

    def dies_while_building(supervisor: FakeSupervisor) -> None:
        lock.touch()
        exits(1)(supervisor)

    supervisor = fake(dies_while_building, runs, exits(0))
    start = supervisor.start
    seen: list[bool] = []

    def look_and_start(program: str) -> None:
        seen.append(lock.exists())
        start(program)

    supervisor.start = look_and_start  # type: ignore[method-assign]
    lock.touch()
    watch(supervisor)
    assert seen == [False, False]
    assert capsys.readouterr().out.count(f"watchdog: removed {lock}, ") == 2
    assert library.exists()


@pytest.mark.parametrize("named", [None, ""])
def test_without_a_folder_of_extensions_no_lock_is_looked_for(
    fake: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lock").touch()
    if named is None:
        monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    else:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", named)
    watch(fake(exits(0)))
    assert (tmp_path / "lock").exists()


def test_program_that_cannot_start_is_final(fake: Build) -> None:
    supervisor = fake()

    def refuse(program: str) -> None:
        raise StartError("no such file")

    supervisor.start = refuse  # type: ignore[method-assign]
    status, message = watch(supervisor)
    assert status is ExitStatus.REFUSED
    assert "no such file" in message


def test_stop_request_leaves_the_rest_to_supervisord(fake: Build) -> None:
    supervisor = fake(runs, is_asked_to_stop)
    with pytest.raises(StopRequested):
        watch(supervisor)
    assert supervisor.done == ["start trainer"]


def test_dead_supervisord_is_an_error(fake: Build) -> None:
    def dies(supervisor: FakeSupervisor) -> None:
        raise ControlError("gone")

    with pytest.raises(ControlError):
        watch(fake(dies))


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "{}", '{"time": "now"}', '{"time": NaN}', '{"time": 99.0}'],
    ids=["missing", "empty", "cut", "list", "no time", "text", "nan", "earlier attempt"],
)
def test_unusable_heartbeats_count_from_the_attempts_start(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "heartbeat.json"
    if content is not None:
        file.write_text(content)
    assert read_heartbeat(file, since=100.0) == Heartbeat(100.0, "starting", 0)


def test_heartbeat_is_read_and_described(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat.json"
    file.write_text('{"time": 200, "phase": "evaluation", "step": 7}')
    beat = read_heartbeat(file, since=100.0)
    assert describe_silence(beat, 500.0, 240.0) == (
        "no heartbeat for 300 s (limit 240 s) in phase 'evaluation' at step 7"
    )
