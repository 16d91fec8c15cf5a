"""The task stream: balanced, apart from every graded game, and the same after a resume."""

import random
from collections import Counter

import pytest

from miner.channels.served import GameTasks
from miner.config.contract import agent_seat
from miner.config.settings import EnvironmentSettings, Settings
from miner.evaluation.grader import GRADER_SEEDS, HELD_OUT_SEEDS, TRAINING_SEEDS
from miner.games import GOOFSPIEL
from miner.training.episodes import decode_task, encode_task, training_dataset


def stream(count, seed=0, **settings):
    tasks = GameTasks(EnvironmentSettings(**settings))
    return [tasks.training(i, seed) for i in range(count)]


def test_every_size_and_seat_comes_equally_often():
    tasks = stream(100)
    kinds = Counter((GOOFSPIEL.size(t.task_id), agent_seat(t.seed)) for t in tasks)
    assert kinds == {(size, seat): 10 for size in (8, 10, 12, 14, 16) for seat in (0, 1)}


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
    rows = training_dataset(settings)["prompt"]
    assert [decode_task(row) for row in rows] == stream(12)
    assert encode_task(decode_task(rows[0])) == rows[0]


@pytest.mark.parametrize("drawn", [lambda start, stop: start, lambda start, stop: stop - 1])
def test_the_seeds_at_both_ends_are_training_seeds_too(monkeypatch, drawn):
    """Whatever is drawn: chance would hardly ever meet an end of so long a range."""
    monkeypatch.setattr(random.Random, "randrange", lambda self, start, stop: drawn(start, stop))
    for task in stream(10):
        assert task.seed in TRAINING_SEEDS
