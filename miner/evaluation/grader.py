"""Lists of episodes: the grader's own, held-out ones, and the seeds left for training.

Invariants:
* `episode_list` gives the grader's episodes in the grader's order (a longer list extends a
  shorter one);
* the three seed ranges below are disjoint and `_GAP` apart, more than any offset at which a
  server derives its random streams from a seed (100 at most). So no held-out game is ever trained
  on, and no trained game is graded, for all base seeds.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from random import Random

from miner.config.contract import (
    GOOFSPIEL,
    GRADER_BASE_SEED,
    LARGEST_GRADER_SEED,
    LARGEST_SEED,
    agent_seat,
)
from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.games import Game, game_named

_GAP = 1_000
_HELD_OUT_MAX = 2_000_000

GRADER_SEEDS = range(1, LARGEST_GRADER_SEED + 1)
HELD_OUT_SEEDS = range(LARGEST_GRADER_SEED + _GAP, _HELD_OUT_MAX + 1)
TRAINING_SEEDS = range(_HELD_OUT_MAX + _GAP, LARGEST_SEED + 1)


def episode_list(
    n: int,
    base_seed: int = GRADER_BASE_SEED,
    environment: str = GOOFSPIEL,
    *,
    sizes: Collection[int] = (),
) -> list[EpisodeTask]:
    """The first `n` episodes that the grader draws from `base_seed`.

    Args:
        sizes: games with deck sizes: keep drawing until `n` episodes have one of these deck sizes.

    Raises: `ConfigurationError` for an unknown game, `n` < 1 or an impossible deck size.
    """
    if n < 1:
        raise ConfigurationError(f"{n} episodes cannot be evaluated: ask for at least 1")
    game = game_named(environment)
    _check_sizes(game, sizes)
    tasks = _grader_episodes(base_seed, game)
    return list(islice((t for t in tasks if not sizes or game.size(t.task_id) in sizes), n))


def held_out_list(
    n: int, base_seed: int = 0, environment: str = GOOFSPIEL, *, sizes: Collection[int] = ()
) -> list[EpisodeTask]:
    """`n` distinct episodes for choosing between models, drawn from `HELD_OUT_SEEDS`.

    Seats alternate and deck sizes take turns, so a short list has the grader's mix
    with less variance than an independent draw.
    Raises: `ConfigurationError` as `episode_list`.
    """
    if not 1 <= n <= len(HELD_OUT_SEEDS) // 4:
        raise ConfigurationError(
            f"{n} held-out episodes cannot be drawn: ask for 1 to {len(HELD_OUT_SEEDS) // 4}"
        )
    game = game_named(environment)
    _check_sizes(game, sizes)
    rng = Random(base_seed)
    used: set[int] = set()
    tasks: list[EpisodeTask] = []
    wanted: Sequence[int | None] = sorted(sizes) or game.sizes or (None,)
    while len(tasks) < n:
        seat, size = len(tasks) % 2, wanted[len(tasks) // 2 % len(wanted)]
        seed = rng.choice(HELD_OUT_SEEDS)
        task = _task(game, seed)
        if agent_seat(seed) == seat and game.size(task.task_id) == size and seed not in used:
            used.add(seed)
            tasks.append(task)
    return tasks


def _grader_episodes(base_seed: int, game: Game) -> Iterator[EpisodeTask]:
    rng = Random(base_seed)
    while True:
        yield _task(game, rng.randint(1, LARGEST_GRADER_SEED))


def _task(game: Game, seed: int) -> EpisodeTask:
    low, high = game.task_ids
    return EpisodeTask(game.name, Random(seed).randint(low + 1, high), seed)


def _check_sizes(game: Game, sizes: Collection[int]) -> None:
    if sizes and not game.sizes:
        raise ConfigurationError(f"{game.name!r} has no deck sizes to choose from: leave them out")
    for size in sizes:
        if size not in game.sizes:
            raise ConfigurationError(
                f"deck size {size} does not exist: choose from {', '.join(map(str, game.sizes))}"
            )
