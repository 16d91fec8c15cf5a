"""Results of the plan: the trainer's settings, times, environment variables, folders."""

import json
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from entrypoint import main
from entrypoint.environment import program_environment, writable_folders
from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.job import Invocation, Job, parse_invocation
from entrypoint.ladder import step_down, without_vllm
from entrypoint.layout import Topology
from entrypoint.memory import ModelShape
from entrypoint.model_facts import ModelFacts
from entrypoint.paths import Paths
from entrypoint.pretended import pretend_hardware
from entrypoint.run_cost import run_cost
from entrypoint.run_plan import RunPlan
from entrypoint.schedule import plan_run
from entrypoint.topology import plan_topology
from entrypoint.trainer_settings import PlannedSettings
from miner.config.overrides import value_at
from miner.config.recipes import recipe
from miner.config.run_files import BEST_FILE
from miner.config.section import setting_fields
from miner.config.settings import Settings, check_divides, to_toml
from miner.environments.games.longest import shortest_conversation
from miner.training.episodes import task_stream
from miner.training.run_dir import prepare_run_dir
from tests.entrypoint.test_topology import INVENTORIES, MODELS

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
    *overrides: str,
    inventory: str = "0",
    shape: ModelShape = SHAPE,
    recipe: str | None = None,
    **fields: object,
) -> tuple[Settings, RunPlan, Topology]:
    wanted = job(**fields)
    invocation = Invocation(wanted, False, None, None, overrides, (), recipe)
    settings = PlannedSettings(invocation, shape.parameters)
    hardware = pretend_hardware(inventory)
    batch = settings.batch_shape()
    topology = plan_topology(hardware, shape, batch)
    paths = Paths.of(wanted, {})
    plan = plan_run(wanted, paths, topology, FACTS, 1000.0, {})
    cost = run_cost(batch, topology, shape, hardware)
    return settings.planned(paths, plan, topology, hardware.cpus, cost), plan, topology


def test_the_resolved_settings_of_every_plan_are_as_reviewed(
    golden: Callable[[str, str], None],
) -> None:
    """Nobody ships what nobody has looked at: defaults, recipe and plan together."""
    trees = {
        f"{name} on {inventory}": planned(inventory=inventory, shape=shape)[0].model_dump(
            mode="json"
        )
        for name, shape in {"tiny": SHAPE, **MODELS}.items()
        for inventory in INVENTORIES
    }
    values = {
        name: [value_at(t, name) for t in trees.values()] for name in setting_fields(Settings)
    }
    common = {name: all_[0] for name, all_ in values.items() if all(v == all_[0] for v in all_)}
    special = {
        plan: {name: value_at(tree, name) for name in values if name not in common}
        for plan, tree in trees.items()
    }
    golden("settings.json", json.dumps({"all plans": common, **special}, indent=2) + "\n")


def take_up(settings: Settings, folder: Path) -> None:
    """Do a trainer's work with its settings file up to its first scores, short of the model."""
    file = folder / "trainer.toml"
    file.write_text(to_toml(settings))
    assert Settings.load(file, environ={}) == settings
    prepare_run_dir(settings.having(run_dir=folder / "run"))
    (folder / "run" / BEST_FILE).write_text("{}")


@pytest.mark.parametrize("inventory", ["0", "1xH100-80GB", "2xH100-80GB", "4xH100-80GB"])
def test_the_trainer_accepts_all_changes_of_the_watchdog(tmp_path: Path, inventory: str) -> None:
    """Each change in turn, in the run folder that the settings before it have scored in."""
    settings = planned(inventory=inventory, shape=MODELS["0.5B"])[0]
    settings = settings.having(model={"path": None})  # there is none
    take_up(settings, tmp_path)
    rungs, taken = 0, 0
    while step := step_down(settings, rungs, adapter_learning_rate=3e-4):
        settings, rungs, _ = step
        take_up(settings, tmp_path)
        taken += 1
    assert taken == (6 if inventory == "4xH100-80GB" else 5)  # ZeRO-3 for several trainers only
    if alone := without_vllm(settings, keep_stage=False):
        take_up(alone, tmp_path)


def test_user_settings_win_over_plan_and_recipe() -> None:
    settings, _, topology = planned(
        "optimizer.micro_batch_tokens=2048",
        "rollout.max_episode_tokens=512",
        "optimizer.learning_rate=0.5",
        inventory="1xH100-80GB",
    )
    assert settings.optimizer.micro_batch_tokens == topology.pass_tokens == 2048
    assert settings.rollout.max_episode_tokens == topology.episode_tokens == 512
    assert settings.optimizer.learning_rate == 0.5


def test_groups_of_the_user_are_rounded_up_to_what_the_trainers_divide() -> None:
    settings, _, topology = planned(
        "rollout.groups_per_step=10", inventory="4xH100-80GB", shape=MODELS["7B"]
    )
    check_divides(settings, topology.processes)
    assert (settings.rollout.groups_per_step, topology.groups, topology.processes) == (12, 12, 4)
    assert planned("rollout.groups_per_step=10")[0].rollout.groups_per_step == 10


def test_the_plan_knows_the_rank_of_adapters() -> None:
    small, large = (
        planned(f"model.lora_rank={rank}", inventory="1xH100-80GB", shape=MODELS["7B"])[2]
        for rank in (8, 64)
    )
    assert small.tuning == large.tuning == "lora"
    gradients = [dict(topology.memory[0].items)["gradients"] for topology in (small, large)]
    assert gradients[1] == 8 * gradients[0]  # by less memory the smaller one buys activations


def test_larger_models_learn_with_smaller_steps_and_adapters_with_larger_ones() -> None:
    full = [planned(shape=MODELS[size])[0] for size in ("1.5B", "3B", "7B")]
    rates = [settings.optimizer.learning_rate for settings in full]
    assert rates == [2e-5, 1.5e-5, 1e-5]
    lora = planned("model.tuning=lora", shape=MODELS["7B"])[0]
    assert lora.optimizer.learning_rate == pytest.approx(2e-4)
    by_plan, _, topology = planned(inventory="1xH100-80GB", shape=MODELS["7B"])
    assert topology.tuning == "lora"
    assert by_plan.optimizer.learning_rate == lora.optimizer.learning_rate


def test_targets_are_learned_with_larger_and_smaller_steps_than_sampled_replies() -> None:
    """Little noise is in them, and no group; duels learn from targets too."""
    targets, sampled, other, duels = (
        planned(*words, shape=MODELS["7B"], environments=(game,), duels=duels)[0]
        for words, game, duels in (
            ((), "goofspiel", False),
            (("reward.credit=turn",), "goofspiel", False),
            ((), "othello", False),
            ((), "othello", True),
        )
    )
    rates = [each.optimizer.learning_rate for each in (targets, sampled, other, duels)]
    assert rates == [1e-5, 2e-6, 2e-6, 1e-5]
    forgets = [each.optimizer.adam_beta2 for each in (targets, sampled, other, duels)]
    assert forgets == [0.99, 0.999, 0.999, 0.99]
    assert (targets.rollout.group_size, other.rollout.group_size) == (1, 8)
    adapters = planned("model.tuning=lora", shape=MODELS["7B"], environments=("othello",))[0]
    assert adapters.optimizer.learning_rate == pytest.approx(4e-5)


def test_servers_play_an_evaluation_at_once_though_a_step_has_fewer_games() -> None:
    servers = tuple(f"http://10.0.0.{host}:8000" for host in range(2, 10))
    on_eight = {"shape": MODELS["0.5B"], "inventory": "8xH100-80GB"}
    settings, _, topology = planned(servers=servers, **on_eight)
    assert settings.episodes_per_step < settings.evaluation.episodes
    assert topology.live_episodes * 8 >= settings.evaluation.episodes


@pytest.mark.parametrize(
    ("words", "fields", "longest"),
    [
        ((), {}, 256),
        (("rollout.max_reply_tokens=400",), {}, 400),
        (("evaluation.max_reply_tokens=40",), {}, 40),
        ((), {"environments": ("othello",)}, 16),
        ((), {"duels": True}, 512),
        (("environment.channel=own", "reward.credit=episode"), {}, 16),
        ((), {"shape": MODELS["14B"]}, 32),
        ((), {"shape": MODELS["7B"], "inventory": "2xH100-80GB"}, 128),
        ((), {"shape": replace(MODELS["3B"], context=8192)}, 128),
        ((), {"shape": replace(MODELS["3B"], context=4096)}, 16),
    ],
    ids=[
        "goofspiel",
        "longer",
        "by hand",
        "othello",
        "duels",
        "own class",
        "slow",
        "two",
        "8192",
        "4096",
    ],
)
def test_held_out_games_of_the_servers_goofspiel_have_whole_replies(
    words: tuple[str, ...], fields: dict[str, Any], longest: int
) -> None:
    job: dict[str, Any] = {"shape": MODELS["3B"], "inventory": "1xH100-80GB", **fields}
    assert planned(*words, **job)[0].held_out_reply_tokens == longest


def test_a_game_without_a_critic_gets_credit_by_episode() -> None:
    settings = planned(environments=("othello",), shape=MODELS["0.5B"])[0]
    reward = settings.reward
    assert reward.credit == "episode"
    assert settings.environment.name == "othello"


def test_real_bases_learn_by_the_credit_that_was_measured_with_one() -> None:
    measured = Settings.resolve(recipe("smollm2").settings)
    for size in ("0.5B", "3B", "7B"):
        settings = planned(shape=MODELS[size])[0]
        assert 0 < settings.rollout.guided < measured.rollout.guided
        for name in ("credit", "named"):
            assert getattr(settings.reward, name) == getattr(measured.reward, name)
        assert settings.reward.tau < measured.reward.tau  # that has eight cards alone
    assert planned("reward.credit=turn", shape=MODELS["3B"])[0].rollout.guided == 0
    duels = planned(duels=True, shape=MODELS["0.5B"])[0]
    assert (duels.reward.credit, duels.reward.named) == ("all_moves", True)
    assert duels.rollout.guided == 0
    tiny = planned(duels=True)[0].reward
    assert (tiny.named, tiny.targets) == (False, 1.0)  # its recipe on servers has none


def test_a_user_may_name_the_recipe() -> None:
    settings = planned(recipe="tiny-8-cards", shape=MODELS["0.5B"])[0]
    assert settings.environment.deck_sizes == (8,)
    assert (
        settings.optimizer.learning_rate
        == recipe("tiny-8-cards").settings["optimizer"]["learning_rate"]
    )


def test_settings_that_cannot_be_meant_are_refused_before_anything_starts() -> None:
    with pytest.raises(Failure, match="'seed' is a value, not a section") as caught:
        planned("seed=1", "seed.b=2")
    assert caught.value.status is ExitStatus.ARGUMENTS


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("output.dir=/elsewhere", "MINER_CHECKPOINTS_DIR"),
        ('output={dir = "/elsewhere"}', "MINER_CHECKPOINTS_DIR"),
        ("run_dir=/elsewhere", "MINER_CHECKPOINTS_DIR"),
        ("model.path=/elsewhere", "--model"),
        ("environment.servers=[]", "ENVIRONMENT_SERVER_URLS"),
    ],
)
def test_what_the_container_decides_is_refused_with_what_to_use(setting: str, instead: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(Failure, match=f"--set {name}.*{instead}") as caught:
        planned(setting)
    assert caught.value.status is ExitStatus.ARGUMENTS


def test_a_recipe_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(Failure, match=r"no recipe 'best': choose one of .*tiny-8-cards") as caught:
        planned(recipe="best")
    assert caught.value.status is ExitStatus.ARGUMENTS


def test_stop_time_is_below_the_grace_period() -> None:
    paths, topology = Paths.of(job(), {}), planned()[2]
    assert plan_run(job(), paths, topology, FACTS, 0.0, {}).stop_seconds == pytest.approx(5)
    longer = plan_run(job(), paths, topology, FACTS, 0.0, {"MINER_GRACE_SECONDS": "60"})
    assert longer.stop_seconds == pytest.approx(30)
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
    assert environment["VLLM_DISTRIBUTED_USE_SPLIT_GROUP"] == "0"
    assert environment["TORCH_DIST_INIT_BARRIER"] == "0"
    assert all(str(folder).startswith(below) for folder in writable_folders(environment, paths))


def test_the_validators_own_wandb_folders_win() -> None:
    paths = Paths.of(job(), {})
    inherited = {"WANDB_DIR": "/app/wandb", "HF_HOME": "/hf", "ENVIRONMENT_SERVER_URLS": "None"}
    environment = program_environment(paths, inherited)
    assert "ENVIRONMENT_SERVER_URLS" not in environment, "the settings have those that can be used"
    assert environment["WANDB_DIR"] == "/app/wandb"
    assert environment["HF_HOME"] == "/hf"
    assert Path("/app/wandb") not in writable_folders(environment, paths)


def test_nothing_is_inside_the_output_folder() -> None:
    _, plan, _ = planned()
    files = (plan.heartbeat_file, plan.settings_file, plan.supervisor_file, plan.outcome_file)
    assert all(not file.is_relative_to(plan.output_dir) for file in (*files, plan.socket))


@pytest.mark.parametrize(
    ("words", "by_hand"), [((), False), (("--set=seed=7",), True), (("--recipe=real",), True)]
)
def test_the_plan_records_user_settings(
    words: tuple[str, ...],
    by_hand: bool,
    roots: dict[str, str],
    arguments: Callable[..., list[str]],
) -> None:
    invocation = parse_invocation(arguments(*words))
    assert main.prepare(invocation, 1000.0, {**os.environ, **roots}).plan.by_hand is by_hand


def test_programs_load_cuda_from_where_the_hardware_needs_it(
    roots: dict[str, str], arguments: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        main, "run_programs", lambda *run: started.append(run[2].get("LD_LIBRARY_PATH", ""))
    )
    environ = {**os.environ, **roots}
    prepared = main.prepare(parse_invocation(arguments()), 1000.0, environ)
    old = replace(prepared.hardware, cuda_libraries=Path("/compat"))
    main.supervise(replace(prepared, hardware=old), Event())
    assert started[0].split(":")[0] == "/compat"


MISTRAL = ("consolidated.safetensors", "params.json", "tekken.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")


@pytest.mark.parametrize("own", [(), MISTRAL, ADAPTER])
def test_a_base_with_mistrals_own_files_or_an_adapters_is_trained_without_them(
    roots: dict[str, str],
    arguments: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[str, ...],
) -> None:
    base = Path(roots["MINER_CACHE_DIR"]) / "models/acme--tiny"
    for name in own:
        (base / name).write_bytes((base / "model.safetensors").read_bytes())
    started = []
    monkeypatch.setattr(main, "run_programs", lambda plan, programs, *_: started.append(programs))
    environ = {**os.environ, **roots}
    given = arguments("--dry-run", "--gpus", "4xH100-80GB")
    prepared = main.prepare(parse_invocation(given), 1000.0, environ)
    for _ in range(2):  # an orchestrator that was killed begins anew in the same folder
        main.supervise(prepared, Event())
    path = Path(tomllib.loads(prepared.plan.settings_file.read_text())["model"]["path"])
    assert (path == base) == (not own)
    assert {file.name for file in path.iterdir()} == {file.name for file in base.iterdir()} - {*own}
    assert (path / "model.safetensors").samefile(base / "model.safetensors")
    [server] = [each for each in started[-1] if "serve" in each.command]
    assert str(path) in server.command


@pytest.mark.parametrize("game", ["goofspiel", "gin_rummy", "othello", "clobber"])
def test_games_on_servers_fit_into_an_episode(game: str) -> None:
    """Of random play without retries, in a tokenizer that has words, digits and signs."""
    settings = planned(environments=(game,), shape=MODELS["0.5B"], inventory="1xH100-80GB")[0]
    tasks = task_stream(settings.environment)
    games = [shortest_conversation([tasks.training(index, 0)]) for index in range(20)]
    texts = ["".join(message["content"] for message in played) for played in games]
    tokens = [len(re.findall(r"\d|[^\W\d]+|[^\w\s]|\n", text)) for text in texts]
    assert settings.rollout.max_episode_tokens is not None
    assert max(tokens) < settings.rollout.max_episode_tokens
