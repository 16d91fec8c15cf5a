"""Which episodes are played: the grader's own, held-out ones, and those left for training.

Invariants:
* `episode_list` gives the grader's episodes in the grader's order (a longer list extends a
  shorter one);
* the three seed ranges below are disjoint and lie `_GAP` apart, more than any offset at which a
  server derives its random streams from a seed (100 at most). So no held-out game is ever trained
  on, and no trained game is graded, whatever the base seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from random import Random

from miner.config.contract import (
    DECK_SIZES,
    GAMES,
    GRADER_BASE_SEED,
    LARGEST_GRADER_SEED,
    LARGEST_SEED,
    agent_seat,
)
from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.environments.games import task_id_range
from miner.environments.games.goofspiel import deck_size

_GAP = 1_000
_HELD_OUT_MAX = 2_000_000

GRADER_SEEDS = range(1, LARGEST_GRADER_SEED + 1)
HELD_OUT_SEEDS = range(LARGEST_GRADER_SEED + _GAP, _HELD_OUT_MAX + 1)
TRAINING_SEEDS = range(_HELD_OUT_MAX + _GAP, LARGEST_SEED + 1)


def episode_list(
    n: int,
    base_seed: int = GRADER_BASE_SEED,
    environment: str = "goofspiel",
    *,
    sizes: Collection[int] = (),
) -> list[EpisodeTask]:
    """The first `n` episodes that the grader draws from `base_seed`.

    Args:
        sizes: Goofspiel only: keep drawing until `n` episodes have one of these deck sizes.

    Raises: `ConfigurationError` for an unknown game, `n` < 1 or an impossible deck size.
    """
    if n < 1:
        raise ConfigurationError(f"{n} episodes cannot be evaluated: ask for at least 1")
    _check_game(environment)
    _check_sizes(environment, sizes)
    tasks = _grader_episodes(base_seed, environment)
    return list(islice((t for t in tasks if not sizes or deck_size(t.task_id) in sizes), n))


def held_out_list(
    n: int, base_seed: int = 0, environment: str = "goofspiel", *, sizes: Collection[int] = ()
) -> list[EpisodeTask]:
    """`n` distinct episodes for choosing between models, drawn from `HELD_OUT_SEEDS`.

    Seats alternate and Goofspiel's deck sizes take turns, so a short list has the grader's mix
    with less variance than an independent draw.
    Raises: `ConfigurationError` as `episode_list`.
    """
    if not 1 <= n <= len(HELD_OUT_SEEDS) // 4:
        raise ConfigurationError(
            f"{n} held-out episodes cannot be drawn: ask for 1 to {len(HELD_OUT_SEEDS) // 4}"
        )
    _check_game(environment)
    _check_sizes(environment, sizes)
    rng = Random(base_seed)
    used: set[int] = set()
    tasks: list[EpisodeTask] = []
    wanted = sorted(sizes) or list(DECK_SIZES)
    while len(tasks) < n:
        seat, size = len(tasks) % 2, wanted[len(tasks) // 2 % len(wanted)]
        seed = rng.choice(HELD_OUT_SEEDS)
        task = _task(environment, seed)
        fits = environment != "goofspiel" or deck_size(task.task_id) == size
        if agent_seat(seed) == seat and fits and seed not in used:
            used.add(seed)
            tasks.append(task)
    return tasks


def _grader_episodes(base_seed: int, environment: str) -> Iterator[EpisodeTask]:
    rng = Random(base_seed)
    while True:
        yield _task(environment, rng.randint(1, LARGEST_GRADER_SEED))


def _task(environment: str, seed: int) -> EpisodeTask:
    low, high = task_id_range(environment)
    return EpisodeTask(environment, Random(seed).randint(low + 1, high), seed)


def _check_game(environment: str) -> None:
    if environment not in GAMES:
        raise ConfigurationError(f"unknown game {environment!r}: choose one of {', '.join(GAMES)}")


def _check_sizes(environment: str, sizes: Collection[int]) -> None:
    if sizes and environment != "goofspiel":
        raise ConfigurationError(f"deck sizes are Goofspiel's: {environment!r} has none")
    for size in sizes:
        if size not in DECK_SIZES:
            raise ConfigurationError(
                f"deck size {size} does not exist: choose from {', '.join(map(str, DECK_SIZES))}"
            )
