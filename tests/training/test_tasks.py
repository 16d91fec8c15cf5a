"""The task stream and its source: balanced, apart from every graded game, never another channel."""

import asyncio
import io
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.channels.registry import make_channel
from miner.channels.served import GameTasks
from miner.config.contract import DUEL_CARDS, agent_seat
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings, Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel.tasks import fitting_seeds, size_of
from miner.environments import InfrastructureError
from miner.evaluation.grader import GRADER_SEEDS, HELD_OUT_SEEDS, TRAINING_SEEDS
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.games import GAMES, GOOFSPIEL
from miner.reporting.records import EvaluationRecord
from miner.reporting.run_folder import RunFolder
from miner.training import episodes
from miner.training.episodes import decode_task, encode_task, training_dataset, training_source
from mock_env_server.running import running_server
from tests.mock_env_server.http import set_faults


def stream(count, seed=0, **settings):
    tasks = GameTasks(EnvironmentSettings(**settings))
    return [tasks.training(i, seed) for i in range(count)]


def test_every_size_and_seat_comes_equally_often():
    tasks = stream(100)
    kinds = Counter((GOOFSPIEL.size(t.task_id), agent_seat(t.seed)) for t in tasks)
    assert kinds == {(size, seat): 10 for size in (8, 10, 12, 14, 16) for seat in (0, 1)}


def test_the_wanted_opponent_sits_opposite():
    channel = make_channel(EnvironmentSettings(channel="builtin", opponent="mcts"))
    tasks = [*stream(4, opponent="mcts"), *channel.tasks.held_out(4, 0), *channel.compared(4, 42)]
    assert {task.opponent for task in tasks} == {"mcts"}


def test_only_the_wanted_sizes_are_played():
    assert {GOOFSPIEL.size(t.task_id) for t in stream(50, deck_sizes=(8, 16))} == {8, 16}


def test_no_trained_game_is_ever_graded():
    seeds = {t.seed for t in stream(2000)}
    assert all(seed in TRAINING_SEEDS for seed in seeds)
    assert not any(seed in GRADER_SEEDS or seed in HELD_OUT_SEEDS for seed in seeds)
    assert len(seeds) == 2000


def test_a_task_depends_on_its_index_and_the_seed_alone():
    tasks = GameTasks(EnvironmentSettings())
    assert stream(20)[7:] == [tasks.training(i, 0) for i in range(7, 20)]
    assert stream(20, seed=1) != stream(20)


def test_other_games_draw_from_their_own_range():
    tasks = stream(6, name="liars_dice")
    assert all(100_000_000 <= t.task_id < 200_000_000 for t in tasks)
    assert Counter(t.seed % 2 for t in tasks) == {0: 3, 1: 3}


def test_the_dataset_holds_one_row_per_planned_game():
    settings = Settings.load(None, ["optimizer.max_steps=3", "rollout.groups_per_step=4"], {})
    rows = [row["prompt"] for row in training_dataset(settings)]
    assert [decode_task(row) for row in rows] == stream(12)
    assert encode_task(decode_task(rows[0])) == rows[0]


def test_a_dataset_is_hashed_without_its_tasks(monkeypatch):
    """A recorded channel's are all its conversations; datasets pickle what they hash."""

    class Large(GameTasks):
        def __reduce__(self):
            raise AssertionError("pickled")

    monkeypatch.setattr(episodes, "task_stream", Large)
    settings = Settings.load(None, [], {})
    rows = training_dataset(settings)
    again = pickle.loads(pickle.dumps(rows))
    assert again[7] == rows[7]


@pytest.mark.parametrize("drawn", [lambda start, stop: start, lambda start, stop: stop - 1])
def test_the_seeds_at_both_ends_are_training_seeds_too(monkeypatch, drawn):
    """Whatever is drawn: chance would hardly ever meet an end of so long a range."""
    monkeypatch.setattr(random.Random, "randrange", lambda self, start, stop: drawn(start, stop))
    for task in stream(10):
        assert task.seed in TRAINING_SEEDS


def source_name(tmp_path: Path, *overrides: str, servers: str = "") -> str:
    settings = Settings.load(
        None, [f"run_dir={tmp_path}", *overrides], environ={"ENVIRONMENT_SERVER_URLS": servers}
    )
    console = Console(file=io.StringIO())
    with BackgroundLoop() as loop, training_source(settings, loop, console, Ranks()) as source:
        return source.name


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "SERVER_PATIENCE_S", 0.0)
    monkeypatch.setattr(episodes, "RESUMED_PATIENCE_S", 0.0)


@pytest.mark.parametrize("channel", ["auto", "graded", "step"])
def test_dead_servers_are_an_error_and_no_reason_to_play_in_process(
    tmp_path: Path, channel: str
) -> None:
    with pytest.raises(InfrastructureError, match="builtin"):
        source_name(
            tmp_path, f"environment.channel={channel}", servers="http://127.0.0.1:1,http://[::1]:1"
        )


def test_no_servers_are_an_error_unless_the_user_wants_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ENVIRONMENT_SERVER_URLS"):
        source_name(tmp_path)
    assert source_name(tmp_path, "environment.channel=builtin") == "builtin"


def test_one_living_server_of_two_is_played_on(tmp_path: Path) -> None:
    with running_server("faithful") as server:
        urls = f"http://127.0.0.1:1,{server.base_url}"
        assert source_name(tmp_path, servers=urls) == "graded"


def base_was_evaluated(run_dir: Path, channel: str) -> None:
    played = EpisodeRecord(
        environment="goofspiel",
        task_id=1,
        seed=1,
        opponent="random",
        seat=0,
        deck_size=8,
        score=1.0,
    )
    result = EvaluationResult(
        policy="model", channel=channel, environment="goofspiel", episodes=(played,)
    )
    record = EvaluationRecord.of(result, split="held_out", time=0.0, name="base", step=0)
    RunFolder(run_dir).evaluations.append(record)
    (run_dir / "best.json").touch()


def test_a_run_that_began_on_servers_does_not_go_on_in_other_words(tmp_path: Path) -> None:
    """While no game can be played there; before its base was evaluated it may."""
    failing = {"http_500": 1.0}
    with running_server("faithful", "--admin") as server:
        url = server.base_url
        asyncio.run(set_faults(url, rates=failing))
        assert source_name(tmp_path, servers=url) == "builtin"
        base_was_evaluated(tmp_path, "graded")
        with pytest.raises(InfrastructureError, match="evaluated on the channel graded, and its"):
            source_name(tmp_path, servers=url)
        assert source_name(tmp_path, "environment.channel=builtin") == "builtin"
        asyncio.run(set_faults(url))
        assert source_name(tmp_path, servers=url) == "graded"


def test_scores_of_other_words_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base_was_evaluated(tmp_path, "builtin")
    with running_server("faithful") as server:
        assert source_name(tmp_path, servers=server.base_url) == "graded"
    assert "was evaluated by the builtin game" in caplog.text


@pytest.mark.parametrize("rival", ["base", "snapshot", "FOLDER", "me=FOLDER"])
def test_models_do_not_sit_opposite_where_gpus_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rival: str
) -> None:
    """Their memory is in no plan. The refusal comes before any model is loaded: there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    rival = rival.replace("FOLDER", str(tmp_path))
    words = ("environment.channel=duel", f"model.path={tmp_path}/none")
    with pytest.raises(ConfigurationError, match=rf"names models \({rival}\).* mcts:SIMULATIONS"):
        source_name(tmp_path, *words, f'environment.opponents=["random", "{rival}"]')


def test_seeds_of_a_game_with_other_sizes_are_all_drawn(monkeypatch):
    """One of the user's: looking for a size that it does not have would never end."""
    nim = replace(GAMES["clobber"], name="nim", duel_sizes=("3", "4"))
    monkeypatch.setitem(GAMES, "nim", nim)
    assert next(fitting_seeds("nim", iter(range(7, 40)), DUEL_CARDS), None) == 7
    fours = fitting_seeds("nim", iter(range(40)), ("4",))
    assert {size_of("nim", seed) for seed in fours} == {"4"}
