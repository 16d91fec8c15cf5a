"""Teachers in a process: the same demonstrations, whatever becomes of the process."""

import os
import pickle
import signal
import sys
import textwrap
import threading
from pathlib import Path
from subprocess import run

import pytest

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.duel.channel.tasks import duel_task
from miner.duel.memory import WordCounter
from miner.duel.wording import own_wording
from miner.rollout.renderer import ChatRenderer
from miner.training import demonstrations
from miner.training.episodes import encode_task
from miner.training.teacher_process import TeacherProcess
from miner.training.teachers import Teachers
from tests.builders import build_tokenizer
from tests.conftest import REPOSITORY
from tests.training.test_demonstrations import GamePlayed, _at, _played, _warm_start, settings_with


def teachers(settings: Settings | None = None) -> Teachers:
    given = settings or settings_with("demonstrations.rows=4")
    renderer = ChatRenderer(build_tokenizer())
    return Teachers(given, 0, 1, renderer, own_wording(), WordCounter(), "qwen25")


@pytest.fixture(scope="module")
def running() -> TeacherProcess:
    """One that has started."""
    process = TeacherProcess(teachers())
    process.made(0)
    return process


def test_a_process_makes_what_a_thread_makes(running: TeacherProcess) -> None:
    assert [running._asked(step) for step in (3, 1)] == [teachers().made(step) for step in (3, 1)]


def test_a_process_that_is_killed_leaves_its_steps_to_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = TeacherProcess(teachers())
    assert process.made(0)
    assert process._process
    killed = process._process
    os.kill(killed.pid, signal.SIGKILL)
    assert [process.made(step) for step in (1, 2)] == [teachers().made(step) for step in (1, 2)]
    (line,) = caplog.messages
    assert "play in a thread" in line
    assert killed.returncode == -signal.SIGKILL, "no zombie stays"


def test_what_a_process_cannot_be_given_is_played_in_the_thread() -> None:
    made = teachers()
    made._given = (*made._given[:2], threading.Lock())  # as a tokenizer that cannot be pickled
    process = TeacherProcess(made)
    assert process.made(1) == teachers().made(1)
    assert process._process
    assert process._process.returncode is not None, "it waits for nothing"


def test_a_process_ends_quietly_where_the_trainer_ended_before_it_was_given_anything(
    tmp_path: Path,
) -> None:
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps(teachers())[:-10])
    for path in (given, Path(os.devnull)):
        with path.open("rb") as steps:
            program = [sys.executable, "-m", "miner.training.teacher_process"]
            ended = run(program, stdin=steps, capture_output=True, cwd=REPOSITORY, check=True)
        assert (ended.stdout, ended.stderr) == (b"", b"")


def test_processes_end_where_own_games_begin() -> None:
    warm = _warm_start(settings_with("demonstrations.processes=1"))
    assert warm.rows(0)
    (worker,) = warm._workers
    assert isinstance(worker, TeacherProcess)
    assert worker._process
    with pytest.raises(GamePlayed):
        _played(warm, lambda step: 0.9)(
            [encode_task(duel_task("goofspiel", 1, 0, "random"))], _at(1)
        )
    assert worker._process.returncode == -signal.SIGKILL
    assert worker.made(2) == []


def test_processes_end_where_teachers_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "MOST_SECONDS", 0.0)
    warm = _warm_start(settings_with("demonstrations.processes=1"))
    with pytest.raises(GamePlayed):
        _played(warm)([encode_task(duel_task("goofspiel", 1, 0, "random"))], _at(0))
    (worker,) = warm._workers
    assert worker.made(1) == []


def test_it_ends_with_its_input_and_not_with_what_stops_the_trainer(
    running: TeacherProcess,
) -> None:
    process = running._process
    assert process
    assert os.getpgid(process.pid) == process.pid
    assert process.stdin
    process.stdin.close()
    assert process.wait(60) == 0
    assert running.made(1) == teachers().made(1)


def test_a_users_teacher_may_print_and_its_mistake_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = """
        import subprocess

        def teach(game, seen):
            print("thinking", subprocess.run(["cat"], check=True))  # reads no steps
            return {} if game == "goofspiel" else None
    """
    Path("own_teacher.py").write_text(textwrap.dedent(own))
    settings = settings_with("demonstrations.teacher=own_teacher.py:teach", "demonstrations.rows=4")
    process = TeacherProcess(teachers(settings))
    with pytest.raises(ConfigurationError, match=r"own_teacher.py:teach' returned .* in goofspiel"):
        process.made(0)
    with pytest.raises(ConfigurationError):  # by the same process
        process.made(1)
    assert process._process


def test_several_processes_make_the_steps_of_one_thread() -> None:
    whole = _warm_start(settings_with())
    shared = _warm_start(settings_with("demonstrations.processes=2"))
    assert [shared.rows(step) for step in range(3)] == [whole.rows(step) for step in range(3)]
    assert len({worker._process.pid for worker in shared._workers}) == 2
