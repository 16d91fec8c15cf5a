"""What the plan becomes: the trainer's settings, times, environment variables, folders."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from entrypoint import main
from entrypoint.environment import program_environment, writable_folders
from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.inventory import pretend_hardware
from entrypoint.job import Job, parse_invocation
from entrypoint.ladder import Settings, get_setting, step_down, weights_by_file, without_vllm
from entrypoint.memory import ModelShape
from entrypoint.model_facts import ModelFacts
from entrypoint.paths import Paths
from entrypoint.presets import PRESETS, preset_for
from entrypoint.run_plan import RunPlan
from entrypoint.schedule import plan_run
from entrypoint.topology import Topology, plan_topology
from entrypoint.trainer_settings import (
    batch_shape,
    choose_game,
    deepspeed_config,
    parse_overrides,
    trainer_settings,
)
from miner.config.settings import check_divides, load_settings
from miner.distributed.zero import zero_stage
from miner.training.run_dir import prepare_run_dir

SHAPE = ModelShape(600_000, 2, 128, 512, 4, 2, 32, 300, 1024)
FACTS = ModelFacts("Qwen3ForCausalLM", "F32", 2_400_000, SHAPE, True, ())


def job(**fields: object) -> Job:
    return Job.model_validate(
        {
            "task_id": "t",
            "model": "acme/tiny",
            "repo_name": "r",
            "environments": ("goofspiel",),
            "servers": ("http://10.0.0.2:8000",),
            "seconds": 3600,
            "hours_note": "",
            **fields,
        }
    )


def planned(
    *overrides: str, inventory: str = "0", shape: ModelShape = SHAPE
) -> tuple[Settings, RunPlan, Topology]:
    wanted = parse_overrides(overrides)
    hardware = pretend_hardware(inventory)
    topology = plan_topology(hardware, shape, batch_shape(wanted, servers=1))
    paths = Paths.of(job(), {})
    plan = plan_run(job(), paths, topology, FACTS, 1000.0, {})
    settings = trainer_settings(
        job(), paths, plan, topology, hardware.cpus, shape.parameters, wanted
    )
    return settings, plan, topology


@pytest.mark.parametrize("inventory", ["2xH100-80GB", "4xH100-80GB"])
def test_the_trainer_goes_on_with_whatever_the_watchdog_changes(
    tmp_path: Path, inventory: str
) -> None:
    """Each change in turn, in the run folder of the settings before it."""

    def take_up(settings: Settings) -> None:
        file = tmp_path / "trainer.toml"
        file.write_text(tomli_w.dumps(settings))
        prepare_run_dir(load_settings(file, [f"run_dir={tmp_path / 'run'}"], environ={}))

    planned_settings, _, _ = planned(inventory=inventory)
    for name in ("model", "deepspeed"):  # neither folder nor file is there
        planned_settings.pop(name, None)
    planned_settings["optimizer"].pop("deepspeed", None)
    take_up(planned_settings)
    settings: Settings | None = weights_by_file(planned_settings)
    assert settings is not None
    take_up(settings)
    rungs, taken = 0, 0
    while step := step_down(settings, rungs):
        settings, rungs, _ = step
        take_up(settings)
        taken += 1
    assert taken > 1
    settings = without_vllm(settings)
    assert settings is not None
    take_up(settings)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("rollout.groups_per_step=2", "rollout.group_size=3"),
        ("environment.channel=builtin", "optimizer.max_steps=5", "seed=7"),
        ("environment.deck_sizes=[8]",),
    ],
)
def test_the_trainer_accepts_what_is_planned(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    settings, plan, _ = planned(*overrides)
    file = tmp_path / "trainer.toml"
    file.write_text(tomli_w.dumps(settings))
    loaded = load_settings(file, environ={})
    assert loaded.run_dir == plan.train_dir
    assert str(loaded.model.path) == "/cache/models/acme--tiny"
    assert str(loaded.output.dir) == "/app/checkpoints/t/r"
    assert loaded.environment.servers == ("http://10.0.0.2:8000",)
    assert loaded.deadline.ends_at == plan.trainer_ends_at
    assert loaded.rollout.max_episode_tokens == 1024
    assert loaded.threads == 8


def test_a_persons_settings_win() -> None:
    settings, _, _ = planned("optimizer.micro_batch_tokens=2048", "rollout.max_episode_tokens=512")
    assert get_setting(settings, "optimizer.micro_batch_tokens") == 2048
    assert get_setting(settings, "rollout.max_episode_tokens") == 512


@pytest.mark.parametrize("inventory", ["0", "1xH100-80GB"])
def test_a_pass_holds_what_the_plan_has_room_for(inventory: str) -> None:
    settings, _, topology = planned(inventory=inventory)
    tokens = get_setting(settings, "optimizer.micro_batch_tokens")
    assert tokens == topology.micro_batch * topology.episode_tokens


def test_gpu_plans_name_their_engine() -> None:
    split, _, topology = planned(inventory="8xH100-80GB")
    assert get_setting(split, "rollout.engine") == "vllm_server"
    assert get_setting(split, "optimizer.deepspeed").endswith("deepspeed.json")
    assert deepspeed_config(topology)["zero_optimization"]["stage"] == 2
    shared, _, _ = planned(inventory="1xH100-80GB")
    assert get_setting(shared, "rollout.engine") == "vllm_colocated"
    assert get_setting(shared, "rollout.memory_share") > 0
    assert get_setting(shared, "optimizer.deepspeed") is None


@pytest.mark.parametrize("parameters", [600_000, 3_000_000_000, 14_000_000_000])
@pytest.mark.parametrize(
    "inventory", ["0", "1xH100-80GB", "2xH100-80GB", "4xH100-80GB", "8xH100-80GB"]
)
def test_the_trainer_knows_every_setting_of_a_plan(
    tmp_path: Path, inventory: str, parameters: int
) -> None:
    shape = replace(SHAPE, parameters=parameters)
    settings, _, topology = planned(inventory=inventory, shape=shape)
    if topology.processes > 1:
        deepspeed = tmp_path / "deepspeed.json"
        deepspeed.write_text(json.dumps(deepspeed_config(topology)))
        settings["optimizer"]["deepspeed"] = str(deepspeed)
    file = tmp_path / "trainer.toml"
    file.write_text(tomli_w.dumps(settings))
    loaded = load_settings(file, environ={})
    check_divides(loaded, topology.processes)
    assert zero_stage(loaded) == topology.zero_stage
    engines = {"cpu": "transformers", "colocated": "vllm_colocated", "split": "vllm_server"}
    assert loaded.rollout.engine == engines[topology.layout]


def test_larger_models_learn_with_smaller_steps_and_adapters_with_larger_ones() -> None:
    sizes = [600_000, 500_000_000, 3_000_000_000, 14_000_000_000]
    rates = [preset_for(size).learning_rate("full") for size in sizes]
    assert rates == sorted(set(rates), reverse=True)
    assert all(preset.lora > preset.full for preset in PRESETS)
    large = replace(SHAPE, parameters=sizes[-1])
    settings, _, topology = planned(inventory="8xH100-80GB", shape=large)
    rate = get_setting(settings, "optimizer.learning_rate")
    assert rate == preset_for(sizes[-1]).learning_rate(topology.tuning)
    chosen, _, _ = planned("optimizer.learning_rate=0.5", shape=large)
    assert get_setting(chosen, "optimizer.learning_rate") == 0.5


def test_the_demos_model_keeps_the_rate_it_was_measured_with() -> None:
    settings, _, _ = planned()
    assert (
        get_setting(settings, "optimizer.learning_rate")
        == load_settings(None, environ={}).optimizer.learning_rate
    )


@pytest.mark.parametrize("text", ["novalue", "=3", "a=1 b", "."])
def test_overrides_that_are_none(text: str) -> None:
    if text == "a=1 b":  # no TOML value: plain text
        assert parse_overrides([text]) == {"a": "1 b"}
        return
    with pytest.raises(Failure, match="KEY=VALUE"):
        parse_overrides([text])


def test_override_below_a_value_is_refused() -> None:
    with pytest.raises(Failure, match="a is a value, not a section") as caught:
        parse_overrides(["a=1", "a.b=2"])
    assert caught.value.status is ExitStatus.ARGUMENTS


def test_override_that_the_plan_needs_must_be_a_number() -> None:
    with pytest.raises(Failure, match=r"rollout.group_size='many'"):
        batch_shape(parse_overrides(["rollout.group_size=many"]), servers=1)


@pytest.mark.parametrize(
    ("names", "game"),
    [
        (("othello",), "othello"),
        (("gin_rummy", "goofspiel"), "goofspiel"),
        (("gin_rummy", "othello"), "gin_rummy"),
    ],
)
def test_one_game_is_trained_and_the_others_are_named(names: tuple[str, ...], game: str) -> None:
    chosen, why = choose_game(names)
    assert chosen == game
    assert all(name in why for name in names if name != game)


@pytest.mark.parametrize("seconds", [30.0, 1800.0, 36000.0])
def test_times_are_in_order_and_leave_most_to_training(seconds: float) -> None:
    topology = planned()[2]
    plan = plan_run(job(seconds=seconds), Paths.of(job(), {}), topology, FACTS, 1000.0, {})
    assert 1000 < plan.trainer_ends_at < plan.ends_at < plan.kill_at == 1000 + seconds
    assert plan.trainer_ends_at - 1000 >= 0.9 * seconds


def test_stop_time_is_below_the_grace_period() -> None:
    paths, topology = Paths.of(job(), {}), planned()[2]
    assert plan_run(job(), paths, topology, FACTS, 0.0, {}).stop_seconds == pytest.approx(7)
    longer = plan_run(job(), paths, topology, FACTS, 0.0, {"MINER_GRACE_SECONDS": "60"})
    assert longer.stop_seconds == pytest.approx(42)
    with pytest.raises(Failure, match="MINER_GRACE_SECONDS"):
        plan_run(job(), paths, topology, FACTS, 0.0, {"MINER_GRACE_SECONDS": "a while"})


def test_every_cache_is_below_the_run_folder(tmp_path: Path) -> None:
    paths = Paths.of(job(), {"MINER_CHECKPOINTS_DIR": str(tmp_path)})
    environment = program_environment(paths, {"TRITON_CACHE_DIR": "/root/.triton", "PATH": "/bin"})
    below = str(paths.run_dir / "cache")
    for name in ("TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HF_DATASETS_CACHE"):
        assert environment[name].startswith(below)
    assert environment["PATH"] == "/bin"
    assert environment["HF_HOME"] == "/cache"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert all(str(folder).startswith(below) for folder in writable_folders(environment, paths))


def test_the_validators_own_wandb_folders_win() -> None:
    paths = Paths.of(job(), {})
    environment = program_environment(paths, {"WANDB_DIR": "/app/wandb", "HF_HOME": "/hf"})
    assert environment["WANDB_DIR"] == "/app/wandb"
    assert environment["HF_HOME"] == "/hf"
    assert Path("/app/wandb") not in writable_folders(environment, paths)


def test_nothing_lies_inside_the_output_folder() -> None:
    _, plan, _ = planned()
    files = (plan.heartbeat_file, plan.settings_file, plan.supervisor_file, plan.outcome_file)
    assert all(not file.is_relative_to(plan.output_dir) for file in (*files, plan.socket))


def test_run_plan_survives_its_file(tmp_path: Path) -> None:
    plan = planned()[1].model_copy(update={"run_dir": tmp_path})
    plan.write()
    assert RunPlan.read(plan.plan_file) == plan


def test_settings_are_valid_toml() -> None:
    settings, _, _ = planned(inventory="4xH100-80GB")
    assert tomllib.loads(tomli_w.dumps(settings)) == settings


@pytest.mark.parametrize(("words", "by_hand"), [((), False), (("--set=seed=7",), True)])
def test_the_plan_says_whether_a_person_set_anything(
    words: tuple[str, ...],
    by_hand: bool,
    roots: dict[str, str],
    arguments: Callable[..., list[str]],
) -> None:
    invocation = parse_invocation(arguments(*words))
    assert main.prepare(invocation, 1000.0, {**os.environ, **roots}).plan.by_hand is by_hand
