"""What a job is prepared with, and what another life of its container goes on with."""

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from entrypoint import main
from entrypoint.job import parse_invocation
from entrypoint.pretended import pretend_hardware
from entrypoint.programs import plan_programs
from entrypoint.reaper import Ended
from entrypoint.run_cost import START_SECONDS
from miner.config.run_files import BEST_FILE
from miner.config.settings import Settings, to_toml
from miner.training.run_dir import prepare_run_dir
from tests.entrypoint.plans import run_plan
from tests.entrypoint.test_run_settings import planned
from tests.entrypoint.test_topology import MODELS

Arguments = Callable[..., list[str]]
MACHINES = [("0", False), ("1xH100-80GB", False), ("2xH100-80GB", True)]
"""An inventory, and whether a tiny model is served on it by a program of its own."""
MACHINES_OF_SERVERS = [("1xH100-80GB", "colocated"), ("5xH100-80GB", "split")]


@pytest.mark.parametrize(("inventory", "served"), MACHINES)
def test_the_watchdog_asks_for_a_server_exactly_where_one_is_started(
    inventory: str, served: bool
) -> None:
    settings, plan, topology = planned(inventory=inventory)
    names = {program.name for program in plan_programs(plan, topology, Path("/m"), 8)}
    assert ("inference" in names) is (plan.inference_health is not None) is served
    if served:
        assert plan.inference_health == f"{settings.rollout.server}/health"


@pytest.mark.parametrize(("inventory", "_"), MACHINES)
def test_a_start_is_no_silence(inventory: str, _: bool) -> None:
    _, plan, topology = planned(inventory=inventory)
    assert plan.stall_seconds >= 4 * START_SECONDS[topology.layout]
    assert (plan.stall_seconds == 3600.0) is (topology.layout == "cpu")  # a step takes long there


def test_a_job_of_duels_meets_players_with_a_rule_and_sees_notes_on_them() -> None:
    settings = planned(duels=True, shape=MODELS["3B"])[0]
    wanted = settings.environment
    assert wanted.opponents == ("random", "teacher", "rival")
    assert wanted.notes == 0.5
    assert (settings.demonstrations.rows, settings.reward.tau) == (64, 0.015)


@pytest.mark.parametrize(("error", "layout"), [("", "colocated"), ("they fail", "cpu")])
def test_a_driver_that_is_too_old_is_planned_for(
    roots: dict[str, str],
    arguments: Arguments,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    layout: str,
) -> None:
    old = pretend_hardware("1xH100-80GB", driver="570.86.10")
    monkeypatch.setattr(main, "detect_hardware", lambda environ: old)
    monkeypatch.setattr("entrypoint.forward_compatibility.start_error", lambda libraries: error)
    job = main.prepare(parse_invocation(arguments()), 1000.0, {**os.environ, **roots})
    assert job.topology.layout == layout
    assert (job.hardware.cuda_libraries is None) is bool(error)


@pytest.mark.parametrize(("inventory", "layout"), MACHINES_OF_SERVERS)
def test_replies_of_held_out_games_are_whole_only_while_vllm_gives_them(
    roots: dict[str, str], arguments: Arguments, inventory: str, layout: str
) -> None:
    servers = ",".join(f"http://10.0.0.{host}:8000" for host in range(2, 10))
    environ = {**os.environ, **roots, "ENVIRONMENT_SERVER_URLS": servers}
    asked = ("--dry-run", "--gpus", inventory, "--model-config", "0.5B")
    words = arguments(*asked, hours_to_complete="1.5")
    job = main.prepare(parse_invocation(words, environ), 1000.0, environ)
    unserved = job.plan.unserved_evaluation
    assert unserved is not None
    assert (job.settings.evaluation.max_reply_tokens, unserved.max_reply_tokens) == (256, None)
    assert job.topology.layout == layout
    alone, trainers = job.topology.without_engine(), job.topology.processes
    assert alone.inference_gpus == alone.trainer_gpus == job.topology.trainer_gpus
    assert alone.live_episodes == job.settings.rollout.live_episodes
    at_once = job.topology.live_episodes * len(job.topology.inference_gpus)
    assert 0 <= at_once - trainers * alone.live_episodes < trainers


def test_supervisord_ends_itself_before_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = run_plan(tmp_path, trainer_ends_at=100.0, ends_at=130.0, stop_seconds=5.0)
    plan.run_dir.mkdir()
    ended: list[float] = []
    stopped = Ended(0, "SIGTERM", overdue=False)
    monkeypatch.setattr(
        "entrypoint.reaper.run", lambda *_, stop_at, **__: ended.append(stop_at) or stopped
    )
    main.run_programs(plan, (), {}, Event())
    assert ended == [135.0]


@pytest.mark.parametrize("begun", [True, False])
def test_a_container_that_starts_again_continues_where_its_watchdog_was(
    roots: dict[str, str], arguments: Arguments, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Else the trainer would refuse its own run for the hours that are left."""
    monkeypatch.setattr(main, "run_programs", lambda *_: None)
    environ = {**os.environ, **roots}
    job = main.prepare(parse_invocation(arguments()), 1000.0, environ)
    job.plan.train_dir.mkdir(parents=True)
    lowered = job.settings.having(
        model={"tuning": "lora"},
        optimizer={"learning_rate": 3e-4, "zero_stage": 2},
        evaluation={"episodes": 42, "max_reply_tokens": None},
    )
    prepare_run_dir(lowered)
    if begun:
        (job.plan.train_dir / BEST_FILE).write_text("{}")
    main.supervise(job, Event())
    resumed = Settings.load(job.plan.settings_file, environ={})
    assert resumed == (lowered if begun else job.settings)
    prepare_run_dir(resumed)


def test_a_container_that_starts_again_plans_with_the_time_that_vllm_takes(
    roots: dict[str, str], arguments: Arguments
) -> None:
    """Its watchdog had given vLLM up."""
    words = arguments("--dry-run", "--gpus", "1xH100-80GB", "--model-config", "3B")
    environ = {**os.environ, **roots}
    job = main.prepare(parse_invocation(words, environ), 1000.0, environ)
    planned = job.settings.evaluation
    assert planned.seconds > 1
    job.plan.train_dir.mkdir(parents=True)
    fewer = {"episodes": planned.episodes // 2, "seconds": 9999.0}
    prepare_run_dir(job.settings.having(evaluation=fewer))
    (job.plan.train_dir / BEST_FILE).write_text("{}")
    resumed = main._resumable(job).evaluation
    assert (resumed.episodes, resumed.seconds) == (fewer["episodes"], planned.seconds / 2)


def test_a_container_of_settings_by_hand_keeps_the_games_that_were_chosen_without_vllm(
    roots: dict[str, str], arguments: Arguments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user has set nothing about them. Games that nobody planned are refused as before."""
    monkeypatch.setattr(main, "run_programs", lambda *_: None)
    pretended = ("--dry-run", "--gpus", "1xH100-80GB", "--model-config", "3B")
    words = arguments("--set", "token_records=20", *pretended)
    environ = {**os.environ, **roots}
    job = main.prepare(parse_invocation(words, environ), 1000.0, environ)
    unserved = job.plan.unserved_evaluation
    assert unserved is not None
    assert unserved != job.settings.evaluation
    job.plan.train_dir.mkdir(parents=True)
    given_up = job.settings.having(evaluation=unserved.model_dump())
    prepare_run_dir(given_up)
    (job.plan.train_dir / BEST_FILE).write_text("{}")
    resumed = main._resumable(job).evaluation
    assert resumed.model_copy(update={"seconds": unserved.seconds}) == unserved
    assert resumed.seconds < unserved.seconds, "with vLLM"
    prepare_run_dir(main._resumable(job))
    other = given_up.having(evaluation={"episodes": unserved.episodes + 2})
    (job.plan.train_dir / "settings.toml").write_text(to_toml(other))
    assert main._resumable(job) == job.settings
