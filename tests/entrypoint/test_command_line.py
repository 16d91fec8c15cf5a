"""`python -m entrypoint` as the validator and a person run it."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from entrypoint import main, verdict
from entrypoint.exit_status import ExitStatus, Failure
from miner.publishing.output_path import PUBLICATION_FILE

Arguments = Callable[..., list[str]]
Run = Callable[[list[str], dict[str, str]], subprocess.CompletedProcess[str]]
SECRET = "hf_abcdefghijk"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """The program in this process."""

    def call(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        with mock.patch.dict(os.environ, environment, clear=True):
            status = main.main(arguments)
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run_program(
    arguments: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entrypoint", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("inventory", ["0", "1xH100-80GB", "4xH100-80GB"])
def test_dry_run_prints_everything_and_starts_nothing(
    run: Run,
    arguments: Arguments,
    child_environment: dict[str, str],
    tmp_path: Path,
    inventory: str,
) -> None:
    environment = child_environment | {
        "ENVIRONMENT_SERVER_URLS": "http://10.0.0.2:8000,http://u:pw@10.0.0.3:8000"
    }
    done = run(arguments("--dry-run", "--gpus", inventory), environment | {"HF_TOKEN": SECRET})
    assert done.returncode == 0, done.stderr
    for part in ("Job", "Plan", "Reasons", "Memory of one device", "Estimate", "trainer.toml"):
        assert f"== {part}" in done.stdout
    assert "== Commands" in done.stdout
    for word in ("[supervisord]", "[group:miner]", "-m miner train --config", "passes of"):
        assert word in done.stdout
    assert "0.02 h given: planned for 0.02 h" in done.stdout.splitlines()[1]
    assert ("vllm serve" in done.stdout) == (inventory == "4xH100-80GB")
    assert "'http://***@10.0.0.3:8000' is left out" in done.stdout.splitlines()[0]
    assert "http://10.0.0.2:8000" in done.stdout
    assert "u:pw" not in done.stdout
    assert SECRET not in done.stdout
    assert "\x1b" not in done.stdout
    assert last_line(done) == "miner: exit 0 (ok): dry run, nothing was started"
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_dry_run_plans_for_machine_and_model_that_are_not_there(
    run: Run, arguments: Arguments, child_environment: dict[str, str]
) -> None:
    words = ("--dry-run", "--gpus", "4xH100-80GB")
    missing = run(arguments(*words, model="acme/missing"), child_environment)
    assert missing.returncode == ExitStatus.MODEL
    assert "--model-config with its config.json or a size such as 7B" in last_line(missing)
    planned = run(
        arguments(*words, "--model-config", "7B", model="acme/missing"), child_environment
    )
    assert planned.returncode == 0, planned.stdout
    assert "about 7,615,616,512 parameters, BF16, 14.19 GiB" in planned.stdout
    assert "as large as Qwen2.5-7B; weights and tokenizer were not looked at" in planned.stdout
    assert "[supervisord]" in planned.stdout


@pytest.mark.parametrize(
    ("replaced", "extra", "status", "words"),
    [
        ({"task_id": None}, (), ExitStatus.ARGUMENTS, "--task-id"),
        ({"model": "acme/missing"}, (), ExitStatus.MODEL, "holds acme--tiny"),
        (
            {"model": "acme/missing"},
            ("--set", "rollout.grop=8"),
            ExitStatus.ARGUMENTS,
            "rollout.grop",
        ),
        ({"model": "acme/missing"}, ("--recipe", "none"), ExitStatus.ARGUMENTS, "none"),
        (
            {"model": "acme/missing", "dataset_type": '{"environment_name": "chess"}'},
            (),
            ExitStatus.ARGUMENTS,
            "none of them can be trained: chess; known: ",
        ),
        ({}, ("--set", "environment.channel=step"), ExitStatus.ENVIRONMENT, "none given"),
    ],
)
def test_failures_before_the_run(
    run: Run,
    arguments: Arguments,
    child_environment: dict[str, str],
    replaced: dict[str, str | None],
    extra: tuple[str, ...],
    status: ExitStatus,
    words: str,
) -> None:
    done = run(arguments(*extra, **replaced), child_environment)
    assert done.returncode == status
    assert last_line(done).startswith(f"miner: exit {status.value} ({status.label}): ")
    assert words in last_line(done)


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (Failure(ExitStatus.DISK, "no room"), ExitStatus.DISK),
        (OSError("no room"), ExitStatus.INTERNAL),
        (None, ExitStatus.STOPPED),
    ],
)
def test_a_second_life_that_cannot_begin_ends_with_the_model_of_the_first(
    run: Run,
    arguments: Arguments,
    child_environment: dict[str, str],
    model_writer: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    cause: Exception | None,
    status: ExitStatus,
) -> None:
    def check(prepared: main.Prepared, stop: threading.Event) -> None:
        if cause is None:
            stop.set()
        else:
            raise cause

    monkeypatch.setattr(main, "check", check)
    monkeypatch.setattr(verdict, "FEWEST_SECONDS", math.inf)  # the files are no real model
    assert run(arguments(), child_environment).returncode == status
    output = Path(child_environment["MINER_CHECKPOINTS_DIR"], "task-1", "repo-1")
    (model_writer(output) / PUBLICATION_FILE).write_text('{"step": 7}')
    done = run(arguments(), child_environment)
    assert done.returncode == ExitStatus.OK
    assert ("asked to stop" if cause is None else "no room") in last_line(done)
    by_hand = run(arguments("--set", "seed=1"), child_environment)
    assert by_hand.returncode == status


def test_a_log_that_takes_no_line_does_not_change_the_status(
    arguments: Arguments, child_environment: dict[str, str]
) -> None:
    words = [sys.executable, "-m", "entrypoint", *arguments(model="acme/missing")]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, env=child_environment, stdout=full, check=False)
    assert done.returncode == ExitStatus.MODEL


@pytest.mark.parametrize(
    ("words", "status"),
    [(("--dry-run",), ExitStatus.OK), (("--recipe", "none"), ExitStatus.ARGUMENTS)],
)
def test_the_status_is_the_programs(
    arguments: Arguments,
    child_environment: dict[str, str],
    words: tuple[str, ...],
    status: ExitStatus,
) -> None:
    done = run_program(arguments(*words), child_environment)
    assert done.returncode == status
    assert last_line(done).startswith(f"miner: exit {status.value} ({status.label}): ")


def test_neither_torch_nor_the_trainer_is_imported() -> None:
    code = (
        "import sys, entrypoint.main, entrypoint.watchdog, entrypoint.listener\n"
        "heavy = {'torch', 'transformers', 'trl', 'vllm', 'miner.training', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    repository = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
