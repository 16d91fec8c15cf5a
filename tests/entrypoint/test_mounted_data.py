"""Data sets that validators mount: what a job learns of them, and the plan for their rows."""

import json
import os
from pathlib import Path

import pytest

from entrypoint import main
from entrypoint.job import parse_invocation
from entrypoint.trainer_settings import PlannedSettings, choose_games
from entrypoint.workload import workload
from miner.config.contract import (
    DUEL_TURN_TOKENS,
    INTERCODE,
    INTERCODE_DATASET,
    SWE,
    SWE_DATASET,
    dataset_folder,
)
from miner.config.settings import Settings, to_toml
from tests.entrypoint.test_todays_contract import Arguments, prepared


@pytest.mark.parametrize(
    ("mounted", "others", "game", "said"),
    [
        ("", [], "", f"learned from {SWE_DATASET} only: request it"),
        ("", ["othello"], "othello", f"learned from {SWE_DATASET} only: request it"),
        (SWE_DATASET, [], "swe_infinite", "supervised, from gradients-io"),
        (f"a/b,{SWE_DATASET}", ["othello"], "othello", "with rows of 2 mounted data sets"),
        (
            "a/b",
            [],
            "swe_infinite",
            f"a--b (swe_infinite is learned from {SWE_DATASET}",
        ),
        ("a/b", ["intercode"], "swe_infinite, intercode", "supervised, from a--b"),
        (
            INTERCODE_DATASET,
            ["intercode", "othello"],
            "othello",
            "as the base plays them: swe_infi",
        ),
    ],
)
def test_the_finals_task_is_learned_from_mounted_data(
    roots: dict[str, str],
    arguments: Arguments,
    mounted: str,
    others: list[str],
    game: str,
    said: str,
) -> None:
    names = {"environment_names": ["swe_infinite", *others]}
    environ = roots | {"MINER_DATASETS": mounted, "MINER_DATASETS_DIR": "/data"}
    job = prepared(environ, arguments, "", dataset_type=json.dumps(names))
    chosen, why = choose_games(job.invocation.job)
    assert chosen == game
    assert said in why
    wanted = job.settings
    folders = tuple(Path("/data") / name.replace("/", "--") for name in mounted.split(",") if name)
    if "othello" in others:
        assert wanted.environment.channel == "duel"
        assert wanted.demonstrations.datasets == folders
    elif mounted:
        assert (wanted.environment.channel, wanted.environment.datasets) == ("recorded", folders)
        assert wanted.reward.credit == "episode"
        assert wanted.rollout.max_reply_tokens == 1024
        assert job.plan.served_dtype == "bfloat16"
        real = PlannedSettings(job.invocation, 3 * 10**9).settings
        assert (real.reward.credit, real.rollout.guided) == ("episode", 0.0)
    assert Settings.load(_written(job, roots), environ=environ) == wanted


@pytest.mark.parametrize(
    ("mounted", "tasks", "kept"),
    [
        (["a/b", SWE_DATASET], [SWE], [SWE_DATASET]),
        ([INTERCODE_DATASET, SWE_DATASET], [SWE], [SWE_DATASET]),
        ([INTERCODE_DATASET, SWE_DATASET], [SWE, INTERCODE], [INTERCODE_DATASET, SWE_DATASET]),
        ([INTERCODE_DATASET, SWE_DATASET], [INTERCODE], [INTERCODE_DATASET]),
        (["a/b", INTERCODE_DATASET], [SWE], ["a/b"]),
        ([INTERCODE_DATASET], [SWE], [INTERCODE_DATASET]),
    ],
)
def test_a_job_of_tasks_learns_their_sets_alone_where_some_are_mounted(
    roots: dict[str, str],
    arguments: Arguments,
    mounted: list[str],
    tasks: list[str],
    kept: list[str],
) -> None:
    environ = roots | {"MINER_DATASETS": ",".join(mounted), "MINER_DATASETS_DIR": "/data"}
    names = json.dumps({"environment_names": tasks})
    job = prepared(environ, arguments, "", dataset_type=names)
    folders = [name.replace("/", "--") for name in kept]
    assert [folder.name for folder in job.settings.environment.datasets] == folders
    assert f"supervised, from {', '.join(folders)}" in choose_games(job.invocation.job)[1]
    written = Settings.load(_written(job, roots), environ=environ)
    assert written.environment.datasets == job.settings.environment.datasets


def test_a_job_of_tasks_whose_set_is_empty_learns_what_else_is_mounted(
    roots: dict[str, str], arguments: Arguments, tmp_path: Path
) -> None:
    environ = roots | {"MINER_DATASETS": f"a/b,{INTERCODE_DATASET}"}
    for each in environ["MINER_DATASETS"].split(","):
        (tmp_path / each.replace("/", "--")).mkdir()
    (tmp_path / "a--b" / "rows.jsonl").touch()
    environ["MINER_DATASETS_DIR"] = str(tmp_path)
    job = prepared(environ, arguments, "", dataset_type='{"environment_names": ["intercode"]}')
    assert [folder.name for folder in job.settings.environment.datasets] == ["a--b"]


@pytest.mark.parametrize(
    ("mounted", "longest"), [(INTERCODE_DATASET, 2560), (f"a/b,{SWE_DATASET}", 16_384)]
)
def test_rows_of_intercode_alone_are_as_short_as_its_turns(
    roots: dict[str, str], arguments: Arguments, mounted: str, longest: int
) -> None:
    environ = roots | {"MINER_DATASETS": mounted, "MINER_DATASETS_DIR": "/data"}
    job = prepared(environ, arguments, "", dataset_type='{"environment_names": ["intercode"]}')
    assert job.settings.environment.channel == "recorded"
    assert job.settings.rollout.max_reply_tokens == 512
    wanted = PlannedSettings(job.invocation, parameters=10**9).settings
    assert wanted.rollout.max_episode_tokens == longest
    assert longest / 10 < workload(wanted).trained < longest


def test_a_job_without_a_task_leaves_its_data_out(
    roots: dict[str, str], arguments: Arguments
) -> None:
    environ = roots | {"MINER_DATASETS": f"a/b,{SWE_DATASET}", "MINER_DATASETS_DIR": "/data"}
    job = prepared(environ, arguments, "", dataset_type='{"environment_names": ["othello"]}')
    assert choose_games(job.invocation.job)[1] == "duels; with rows of 1 mounted data sets"
    assert job.settings.demonstrations.datasets == (Path("/data/a--b"),)
    assert Settings.load(_written(job, roots), environ=environ) == job.settings
    environ["MINER_DATASETS"] = f"{SWE_DATASET},{INTERCODE_DATASET}"
    for listed, kept in (([], []), (["intercode"], [INTERCODE_DATASET])):
        names = json.dumps({"environment_names": ["othello", *listed]})
        job = prepared(environ, arguments, "", dataset_type=names)
        found = Settings.load(_written(job, roots), environ=environ).demonstrations.datasets
        assert [folder.name for folder in found] == [name.replace("/", "--") for name in kept]


def _written(job: main.Prepared, roots: dict[str, str]) -> Path:
    """The file of settings that the trainer gets."""
    file = Path(roots["MINER_CHECKPOINTS_DIR"]) / "trainer.toml"
    file.write_text(to_toml(job.settings))
    return file


@pytest.mark.parametrize(
    ("mounted", "longest"),
    [
        ("a/b", 8192),
        (INTERCODE_DATASET, DUEL_TURN_TOKENS),
        (f"{INTERCODE_DATASET},a/b", 8192),
    ],
)
def test_rows_of_mounted_data_are_planned_beside_duels(
    roots: dict[str, str],
    arguments: Arguments,
    tmp_path: Path,
    mounted: str,
    longest: int,
) -> None:
    """Those of InterCode's set are as short as turns, and a folder without files has none."""
    environ = roots | {"MINER_DATASETS_DIR": str(tmp_path), "MINER_DATASETS": mounted}
    names = json.dumps({"environment_names": ["othello", INTERCODE]})
    invocation = parse_invocation(arguments(dataset_type=names), {**os.environ, **environ})
    settings = PlannedSettings(invocation, 3 * 10**9)
    folders = [tmp_path / dataset_folder(name) / "data" for name in mounted.split(",")]
    found = [settings.batch_shape().longest_row]
    for change in (lambda at: at.mkdir(parents=True), lambda at: (at / "train.jsonl").touch()):
        for folder in folders:
            change(folder)
        found.append(settings.batch_shape().longest_row)
    assert found == [DUEL_TURN_TOKENS, DUEL_TURN_TOKENS, longest]
