"""The watchdog's decisions, with a fake supervisord and a clock that the test moves."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from entrypoint import watchdog
from entrypoint.control import ControlError, StartError
from entrypoint.exit_status import ExitStatus
from entrypoint.watchdog import StopRequested, Watchdog
from miner.config.heartbeat import Heartbeat, HeartbeatWriter, newest_write, read_heartbeat
from miner.config.run_files import (
    BEST_FILE,
    CHECKPOINTS,
    COMPLETE,
    HEARTBEAT_FILE,
    write_atomically,
)
from miner.config.settings import Settings
from miner.config.statuses import TrainerStatus
from tests.entrypoint.watched import (
    NOBODY,
    Build,
    FakeSupervisor,
    Moment,
    beats,
    exits,
    is_asked_to_stop,
    runs,
    watch,
)


def test_heartbeats_keep_the_trainer_alive(fake: Build) -> None:
    supervisor = fake(*[beats] * 20, exits(0))
    assert watch(supervisor) == (ExitStatus.UNVERIFIED, "the trainer has published its model")
    assert supervisor.done == ["start trainer"]


def test_silence_stops_the_trainer_and_reports_what_hangs(
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


def test_a_checkpoint_that_is_written_slowly_does_not_count_as_silence_until_writing_stops(
    fake: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    """For 200 s, of a limit of 25 s, by libraries in which the trainer cannot beat."""

    def writes(supervisor: FakeSupervisor) -> None:
        file = supervisor.plan.train_dir / "checkpoints/checkpoint-5/optimizer.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as written:
            written.write(b"0" * 1000)
        os.utime(file, (supervisor.now, supervisor.now))

    supervisor = fake(beats, *[writes] * 20, runs, runs, runs, exits(0))
    watch(supervisor)
    assert supervisor.done == ["start trainer", "stop trainer", "start trainer"]
    assert "no heartbeat for 230 s" in capsys.readouterr().out


def test_a_clock_that_is_set_ahead_is_no_silence(fake: Build) -> None:
    def jumps(supervisor: FakeSupervisor) -> None:
        supervisor.now += 1000

    supervisor = fake(beats, jumps, beats, exits(0))
    steady = iter(range(100))
    plan, stop = supervisor.plan, supervisor.stop_event
    Watchdog(plan, supervisor, stop, supervisor.clock, lambda: next(steady)).run()
    assert supervisor.done == ["start trainer"]


def test_a_model_that_a_slow_disk_takes_is_a_sign_of_life(fake: Build) -> None:
    def copies(supervisor: FakeSupervisor) -> None:
        output = supervisor.plan.output_dir
        file = output.parent / f".{output.name}.staging-1" / "model.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (supervisor.now, supervisor.now))

    supervisor = fake(beats, *[copies] * 20, exits(0))
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer"]


def test_another_attempt_waits_until_a_full_disk_has_room(
    fake: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refusals = [OSError(errno.ENOSPC, "No space left on device")] * 3

    def write(file: Path, text: str) -> None:
        if refusals:
            raise refusals.pop()
        write_atomically(file, text)

    monkeypatch.setattr(watchdog, "write_atomically", write)
    supervisor = fake(exits(TrainerStatus.DISK), exits(0))
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert supervisor.done == ["start trainer", "start trainer"]
    assert capsys.readouterr().out.count("waiting for room on the disk") == 1


def test_a_heartbeat_on_a_full_disk_is_skipped_and_the_next_one_counts(
    small_disk: Path,
) -> None:
    filler = small_disk / "filler"
    writer = HeartbeatWriter(small_disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)
    writer.beat("rollout", 1)
    filler.unlink()
    writer.beat("rollout", 2)
    assert read_heartbeat(small_disk / HEARTBEAT_FILE, 0.0).step == 2


def test_a_phase_that_lasts_beats_again_and_beats_close_together_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((1000.0, 1000.5, 1002.0))
    monkeypatch.setattr("miner.config.heartbeat.time", SimpleNamespace(time=clock.__next__))
    writer, times = HeartbeatWriter(tmp_path), []
    for _ in range(3):
        writer.beat("evaluation", 3)
        times.append(read_heartbeat(tmp_path / HEARTBEAT_FILE, 0.0).time)
    assert times == [1000.0, 1000.0, 1002.0]


def test_a_folder_that_is_removed_while_writes_are_looked_for_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("checkpoint-5", "checkpoint-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "optimizer.pt").write_bytes(b"0")
    os.utime(tmp_path / "checkpoint-10/optimizer.pt", (500.0, 500.0))
    scan = os.scandir

    def scandir(folder: str) -> Any:
        if str(folder).endswith("checkpoint-5"):
            shutil.rmtree(folder)
        return scan(folder)

    monkeypatch.setattr("os.scandir", scandir)
    assert newest_write(tmp_path, until=1000.0) == 500.0


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


def test_lost_servers_are_waited_for(fake: Build, serve: Callable[..., Any]) -> None:
    server = serve(503, 503, 200)
    supervisor = fake(exits(69), exits(0), servers=(server.url,))
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert server.asked == 3


def test_one_server_that_answers_is_enough_to_go_on(fake: Build, serve: Callable[..., Any]) -> None:
    silent, server = serve(503), serve()
    supervisor = fake(exits(69), exits(0), servers=(silent.url, server.url))
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    assert (silent.asked, server.asked) == (1, 1)


def test_servers_that_stay_lost_end_a_run_that_has_played_on_them(fake: Build) -> None:
    supervisor = fake(exits(69), servers=(NOBODY,), trainer_ends_at=1010)
    (supervisor.plan.train_dir / BEST_FILE).touch()
    status, message = watch(supervisor)
    assert status is ExitStatus.ENVIRONMENT
    assert "no environment server answers any more" in message


@pytest.mark.parametrize("answers", [False, True], ids=["silent", "healthy and no more"])
def test_a_run_without_servers_plays_in_its_process_after_a_while(
    fake: Build, serve: Callable[..., Any], answers: bool
) -> None:
    """A server that only says it is healthy ends one attempt after the other."""
    server = serve()
    url = server.url if answers else NOBODY
    attempts, ends_at = (17, 1500) if answers else (1, 1030)  # of 10 s each, in a third of it
    supervisor = fake(*[exits(69)] * attempts, exits(0), servers=(url,), trainer_ends_at=ends_at)
    assert watch(supervisor)[0] is ExitStatus.UNVERIFIED
    settings = Settings.load(supervisor.plan.settings_file, environ={})
    assert settings.environment.channel == "builtin"
    assert server.asked == (17 if answers else 0)


def test_what_is_lost_without_servers_is_a_failure_like_any_other(fake: Build) -> None:
    supervisor = fake(*[exits(69)] * 9, servers=(NOBODY,))
    settings = 'environment.channel = "duel"\nreward.credit = "episode"\n'
    supervisor.plan.settings_file.write_text(settings)
    assert watch(supervisor)[0] is ExitStatus.ENVIRONMENT
    assert supervisor.done.count("start trainer") == supervisor.plan.max_restarts + 1


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
    assert read_heartbeat(file, since=100.0) == Heartbeat(time=100.0, phase="starting", step=0)


@pytest.mark.parametrize(("saved", "tuning"), [(True, "full"), (False, "lora")])
def test_what_a_checkpoint_could_not_resume_with_is_not_tried(
    fake: Build, saved: bool, tuning: str
) -> None:
    ends = exits(TrainerStatus.OUT_OF_MEMORY), exits(0)
    supervisor = fake(*ends, adapter_learning_rate=3e-4)
    plan = supervisor.plan
    plan.settings_file.write_text(
        "[model]\ngradient_checkpointing = true\n[optimizer]\nmicro_batch_tokens = 64\n"
    )
    if saved:
        mark = plan.train_dir / CHECKPOINTS / "checkpoint-5" / COMPLETE
        mark.parent.mkdir(parents=True)
        mark.write_text("{}")
    watch(supervisor)
    written = Settings.load(plan.settings_file, environ={})
    assert written.model.tuning == tuning
    assert (written.optimizer.learning_rate == 3e-4) is not saved
