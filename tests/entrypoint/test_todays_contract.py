"""Jobs as today's tournament gives them: hashed names, several games, no servers, a baseline."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest

from entrypoint import main
from entrypoint.exit_status import ExitStatus
from entrypoint.job import parse_invocation
from entrypoint.reaper import Ended
from entrypoint.trainer_settings import PlannedSettings, choose_game, choose_games
from miner.config import recipes
from miner.config.contract import SWE_DATASET
from miner.config.recipes import RECIPES
from miner.games import GAMES
from miner.publishing.verify import verify_model
from tests.entrypoint.conftest import CONFIG

Arguments = Callable[..., list[str]]
HASHED = "9f86d081884c7d65"
DUELS = '{"environment_names": ["othello", "liars_dice"]}'


@pytest.mark.parametrize(
    ("names", "game", "said"),
    [
        (("othello",), "othello", "the only game"),
        (("gin_rummy", "goofspiel"), "goofspiel", "not trained: gin_rummy"),
        (("gin_rummy", "othello"), "gin_rummy", "not trained: othello"),
        (("intercode", "othello"), "othello", "not known, as the base plays them: intercode"),
        (("intercode", "chess"), "", "none of them can be trained: intercode, chess"),
    ],
)
def test_one_known_game_is_trained_and_the_others_are_named(
    names: tuple[str, ...], game: str, said: str
) -> None:
    chosen, why = choose_game(names)
    assert chosen == game
    assert said in why


@pytest.mark.parametrize("servers", ["", "http://10.0.0.2:8000"])
def test_a_job_that_lists_games_learns_the_duels_of_all_of_them(
    roots: dict[str, str], arguments: Arguments, servers: str
) -> None:
    """Its servers, where it has any, play in another form."""
    names = {"environment_names": ["intercode", "othello", "gin_rummy"]}
    job = prepared(roots, arguments, servers, dataset_type=json.dumps(names))
    wanted = job.settings.environment
    assert (wanted.channel, wanted.games) == ("duel", ("othello", "gin_rummy"))
    assert choose_games(job.invocation.job) == (
        "othello, gin_rummy",
        "duels; as the base plays them: intercode",
    )
    rollout, reward = job.settings.rollout, job.settings.reward
    assert rollout.max_reply_tokens == 512
    assert rollout.episode_seconds > 600
    assert reward.credit == "all_moves"
    assert job.settings.demonstrations.share > 0
    assert job.settings.evaluation.episodes == 600
    assert reward.most_turns is not None
    assert job.plan.served_dtype == "bfloat16"
    assert job.plan.servers == ()  # duels are played in the trainer's process: nobody waits for any


def test_combinations_of_todays_environments_have_a_plan(
    roots: dict[str, str], arguments: Arguments
) -> None:
    """All that can be trained is, in the order given; else the base is handed over."""
    todays = (*GAMES, "intercode", "swe_infinite")
    for size in (1, 2, len(todays)):
        for names in combinations(todays, size):
            job = prepared(roots, arguments, dataset_type=json.dumps({"environment_names": names}))
            known = tuple(name for name in names if name in GAMES)
            assert choose_games(job.invocation.job)[0] == ", ".join(known)
            assert not known or job.settings.environment.games == known
            assert job.programs


def test_a_user_may_play_a_list_of_games_on_servers_all_the_same(
    roots: dict[str, str], arguments: Arguments
) -> None:
    given = ["--set", "environment.channel=step"]
    names = json.dumps({"environment_names": ["goofspiel"]})
    environ = {**os.environ, **roots, "ENVIRONMENT_SERVER_URLS": "http://10.0.0.2:8000"}
    words = [*arguments("--gpus", "0", dataset_type=names), *given]
    job = main.prepare(parse_invocation(words, environ), time.time(), environ)
    assert job.settings.environment.channel == "step"
    assert job.settings.environment.name == "goofspiel"
    assert job.plan.servers == ("http://10.0.0.2:8000",)


def prepared(
    roots: dict[str, str], arguments: Arguments, servers: str = "", **replaced: str
) -> main.Prepared:
    environ = {**os.environ, **roots, "ENVIRONMENT_SERVER_URLS": servers}
    invocation = parse_invocation(arguments("--gpus", "0", **replaced), environ)
    return main.prepare(invocation, time.time(), environ)


@pytest.mark.parametrize("inventory", ["1xH100-80GB", "2xH100-80GB", "4xH100-80GB"])
def test_a_base_that_vllm_cannot_load_is_trained_without_it(
    roots: dict[str, str], arguments: Arguments, tmp_path: Path, inventory: str
) -> None:
    config = tmp_path / "config.json"
    served = ["Olmo3ForCausalLM", "OlmoHybridForCausalLM"]
    engines = []
    for architecture in served:
        config.write_text(json.dumps(CONFIG | {"architectures": [architecture]}))
        words = ("--dry-run", "--gpus", inventory, "--model-config", str(config))
        invocation = parse_invocation(arguments(*words, dataset_type=DUELS), dict(os.environ))
        job = main.prepare(invocation, time.time(), {**os.environ, **roots})
        engines.append(job.settings.rollout.engine)
    assert engines[0].startswith("vllm")
    assert engines[1] == "transformers"
    assert job.settings.optimizer.zero_stage != 3
    assert not any("vllm" in program.command for program in job.programs)


def test_without_servers_episodes_are_played_in_process(
    roots: dict[str, str], arguments: Arguments
) -> None:
    assert prepared(roots, arguments).settings.environment.channel == "builtin"
    served = prepared(roots, arguments, "http://10.0.0.2:8000")
    assert served.settings.environment.channel == "auto"


def test_a_hashed_model_is_found_and_its_family_read_from_its_config(
    roots: dict[str, str],
    arguments: Arguments,
    model_writer: Callable[..., Path],
    tmp_path: Path,
) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    model_writer(tmp_path / "cache/models" / HASHED, config=config)
    assert prepared(roots, arguments, model=HASHED).facts.architecture == "llama"


@pytest.fixture
def unknown_games(roots: dict[str, str], arguments: Arguments) -> main.Prepared:
    """A job that nobody here can train for; no time is left for loading models."""
    names = json.dumps({"environment_names": ["intercode", "chess"]})
    job = prepared(roots, arguments, dataset_type=names)
    plan = job.plan.model_copy(update={"ends_at": time.time() + 3600, "kill_at": 0.0})
    return replace(job, plan=plan)


@pytest.mark.parametrize("adapter", [False, True])
def test_the_miner_fixes_the_base_of_unknown_games_once_it_is_there(
    unknown_games: main.Prepared, monkeypatch: pytest.MonkeyPatch, adapter: bool
) -> None:
    base, plan = unknown_games.paths.model_dir, unknown_games.plan
    if adapter:
        (base / "adapter_config.json").write_text("{}")
        base = plan.run_dir / "base"
    folders = [str(base), str(plan.output_dir)]
    started: list[list[str]] = []

    def start(command: list[str], *_: object, stop_at: float, **__: object) -> Ended:
        assert verify_model(unknown_games.plan.output_dir, load=False, strict=False)
        assert stop_at == unknown_games.plan.ends_at
        started.append(command)
        return Ended(0, asked=None, overdue=False)

    monkeypatch.setattr(main.reaper, "run", start)
    outcome = main.publish_base(unknown_games, "games unheard of", Event())
    assert started == [[sys.executable, "-m", "miner", "publish-base", *folders]]
    assert outcome.status is ExitStatus.OK
    assert "games unheard of" in outcome.message


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(1, asked=None, overdue=False), "exit status 1"),
        (FileNotFoundError(2, "No such file"), "No such file"),
        (Ended(-15, asked=None, overdue=True), "cut off"),
    ],
)
def test_the_base_is_there_though_the_miner_cannot_fix_it(
    unknown_games: main.Prepared,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended: Ended | OSError,
    said: str,
) -> None:
    monkeypatch.setattr(main.reaper, "run", Mock(side_effect=[ended]))
    outcome = main.publish_base(unknown_games, "games unheard of", Event())
    assert outcome.status is ExitStatus.OK
    given = (unknown_games.paths.model_dir / "model.safetensors").read_bytes()
    assert (unknown_games.plan.output_dir / "model.safetensors").read_bytes() == given
    [line] = capsys.readouterr().out.splitlines()
    assert "the base model stays as it came" in line
    assert said in line


def refuse(*_: object, **__: object) -> None:
    pytest.fail("something was started")


def test_a_base_that_cannot_be_published_is_reported(
    unknown_games: main.Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = unknown_games.paths.model_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    monkeypatch.setattr(main.reaper, "run", refuse)
    outcome = main.publish_base(unknown_games, "games unheard of", Event())
    assert outcome.status is ExitStatus.TRAINER
    assert "games unheard of" in outcome.message
    assert "model.safetensors" in outcome.message
    assert not unknown_games.plan.output_dir.exists()


def test_who_asks_to_stop_does_not_wait_for_the_base_to_be_fixed(
    unknown_games: main.Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for it to be loaded, where there would be time. The reaper's tests hold its part."""

    def run(*_: object, asked_before: Callable[[], bool], **__: object) -> Ended:
        assert asked_before()
        return Ended(-15, asked="SIGTERM", overdue=False)

    monkeypatch.setattr(main.reaper, "run", run)
    monkeypatch.setattr("entrypoint.verdict.fresh_process.verify", refuse)
    plan = unknown_games.plan.model_copy(update={"kill_at": time.time() + 3600})
    asked = Event()
    asked.set()
    outcome = main.publish_base(replace(unknown_games, plan=plan), "games unheard of", asked)
    assert outcome.status is ExitStatus.OK
    assert "asked to stop by SIGTERM" in outcome.message


def test_a_recipe_with_own_credit_leaves_jobs_that_set_theirs_a_plan(
    roots: dict[str, str], arguments: Arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RECIPES, tmp_path / "recipes")
    file = tmp_path / "recipes" / "mine.toml"
    file.write_text(
        "recipe.extends = 'real'\nreward = {credit = 'own', entry = 'miner/mine.py:credit'}\n"
    )
    monkeypatch.setattr(recipes, "RECIPES", file.parent)
    environ = {**os.environ, **roots, "MINER_DATASETS": SWE_DATASET, "MINER_DATASETS_DIR": "/data"}
    credit = {}
    for names in ("othello", "swe_infinite"):
        tasks = json.dumps({"environment_names": [names]})
        words = arguments("--gpus", "0", "--recipe", "mine", dataset_type=tasks)
        reward = PlannedSettings(parse_invocation(words, environ), 10**9).settings.reward
        credit[names] = reward.credit, reward.entry
    assert credit == {"othello": ("all_moves", ""), "swe_infinite": ("episode", "")}
    one = arguments("--gpus", "0", "--recipe", "mine")
    reward = PlannedSettings(parse_invocation(one, environ), 10**9).settings.reward
    assert (reward.credit, reward.entry) == ("own", "miner/mine.py:credit")
