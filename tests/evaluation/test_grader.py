"""Episodes that are graded, held out and trained on."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miner.config.contract import DECK_SIZES
from miner.config.errors import ConfigurationError
from miner.evaluation.grader import (
    GRADER_SEEDS,
    HELD_OUT_SEEDS,
    TRAINING_SEEDS,
    episode_list,
    held_out_list,
)
from miner.games import GOOFSPIEL


def test_the_list_is_drawn_as_the_grader_draws_it() -> None:
    rng = Random(42)
    expected = []
    for _ in range(250):
        seed = rng.randint(1, 1_000_000)
        expected.append((Random(seed).randint(1, 99_999_999), seed))
    assert [(task.task_id, task.seed) for task in episode_list(250)] == expected


def test_the_first_episode_of_base_seed_42_is_pinned() -> None:
    first = episode_list(1)[0]
    assert (first.task_id, first.seed) == (92_718_380, 670_488)
    assert (first.environment, first.opponent) == ("goofspiel", "random")


def test_another_game_has_the_same_seeds_and_its_own_task_ids() -> None:
    seeds = [task.seed for task in episode_list(20)]
    leduc = episode_list(20, environment="leduc_poker")
    assert [task.seed for task in leduc] == seeds
    assert all(200_000_000 < task.task_id <= 299_999_999 for task in leduc)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32))
def test_a_longer_list_extends_a_shorter_one(a: int, b: int, base_seed: int) -> None:
    short, long = sorted((a, b))
    assert episode_list(long, base_seed)[:short] == episode_list(short, base_seed)


def test_sizes_keep_the_order_and_fill_the_list() -> None:
    chosen = episode_list(40, sizes={8, 12})
    whole = [task for task in episode_list(400) if GOOFSPIEL.size(task.task_id) in (8, 12)]
    assert chosen == whole[:40]


def test_no_seed_serves_two_purposes_not_even_through_a_stream_offset() -> None:
    ranges = sorted((GRADER_SEEDS, HELD_OUT_SEEDS, TRAINING_SEEDS), key=lambda r: r.start)
    for lower, upper in pairwise(ranges):
        assert upper.start - lower[-1] > 100
    assert {task.seed for task in episode_list(2000)} <= set(GRADER_SEEDS)
    assert all(task.seed in HELD_OUT_SEEDS for task in held_out_list(500))


def test_a_long_held_out_list_has_no_game_twice() -> None:
    assert len({task.seed for task in held_out_list(5000)}) == 5000


def test_a_held_out_list_is_balanced_and_repeatable() -> None:
    tasks = held_out_list(100, base_seed=3)
    cells = Counter((GOOFSPIEL.size(task.task_id), task.seed % 2) for task in tasks)
    assert cells == {(size, seat): 10 for size in DECK_SIZES for seat in (0, 1)}
    assert tasks == held_out_list(100, base_seed=3)
    assert tasks != held_out_list(100, base_seed=4)


def test_a_held_out_list_of_some_sizes_has_only_those() -> None:
    assert {GOOFSPIEL.size(t.task_id) for t in held_out_list(20, sizes=(8, 16))} == {8, 16}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"n": 0}, "0 (held-out )?episodes"),
        ({"n": 5, "environment": "chess"}, "'chess'"),
        ({"n": 5, "sizes": (9,)}, "deck size 9"),
        ({"n": 5, "sizes": (8,), "environment": "leduc_poker"}, "'leduc_poker'"),
    ],
)
def test_a_list_that_cannot_be_drawn_is_refused_by_name(
    arguments: dict[str, object], named: str
) -> None:
    for draw in (episode_list, held_out_list):
        with pytest.raises(ConfigurationError, match=named):
            draw(**arguments)  # type: ignore[arg-type]
