"""Tasks of duels: to learn from, to choose by, to report.

A task of a duel determines its game: `environment` is `duel:NAME`, `task_id` the game's seed,
and `seed` twice that plus the seat, so that the seat is read off it as in the server's games.

Invariants:
* a stream is a pure function of the run's seed, the same after a resume;
* every game, opponent and seat comes up equally often in every stretch of it;
* seeds of training, of held-out games and of the tournament (1 to 1,000,000) are disjoint.
"""

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, product

from miner.config.contract import DUEL_BOARDS, DUEL_CARDS, DUEL_CHANNEL
from miner.config.settings import EnvironmentSettings
from miner.duel.table import configuration_of, game_seeds
from miner.environments.base import EpisodeTask
from miner.evaluation.grader import HELD_OUT_SEEDS, TRAINING_SEEDS
from miner.games import Game, game_named

_PREFIX = f"{DUEL_CHANNEL}:"

Size = int | str

SNAPSHOT, BASE = "snapshot", "base"
"""Opponents: the model that the run has published last, and the one that it began with."""


def duel_task(game: str, seed: int, seat: int, opponent: str) -> EpisodeTask:
    """The task of a game, seen from a seat."""
    return EpisodeTask(f"{_PREFIX}{game}", seed, 2 * seed + seat, opponent)


def duel_of(task: EpisodeTask) -> tuple[Game, int, int]:
    """Game, seed and seat of a task."""
    return game_named(task.environment.removeprefix(_PREFIX)), task.task_id, task.seed % 2


class DuelTasks:
    """`TaskStream` of the duels that settings ask for."""

    name = DUEL_CHANNEL

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings

    def training(self, index: int, seed: int) -> EpisodeTask:
        """Games, opponents and seats come in shuffled cycles."""
        kinds = self._kinds()
        cycle, position = divmod(index, len(kinds))
        random.Random(f"{seed}/cycle/{cycle}").shuffle(kinds)
        game, opponent, seat = kinds[position]
        rng = random.Random(f"{seed}/game/{index}")
        drawn = (
            rng.randrange(TRAINING_SEEDS.start, TRAINING_SEEDS.stop) for _ in itertools.count()
        )
        return duel_task(game, next(fitting_seeds(game, drawn, self._sizes)), seat, opponent)

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """Games and opponents take turns, each seed has both seats.

        The base plays in the place of `SNAPSHOT`, which would be another opponent every time.
        """
        settings = self._settings
        opponents = [BASE if name == SNAPSHOT else name for name in settings.opponents]
        rng = random.Random(base_seed)
        drawn = (rng.choice(HELD_OUT_SEEDS) for _ in itertools.count())
        games = list(dict.fromkeys(settings.games))
        return _pairs(count, drawn, games, opponents, self._sizes)

    @property
    def _sizes(self) -> tuple[Size, ...]:
        return *self._settings.cards, *self._settings.boards

    def _kinds(self) -> list[tuple[str, str, int]]:
        settings = self._settings
        return list(product(settings.games, settings.opponents, (0, 1)))


def evaluation_duels(
    n: int,
    evaluation_seed: int,
    games: Sequence[str],
    opponents: Sequence[str],
    sizes: Collection[Size] = (*DUEL_CARDS, *DUEL_BOARDS),
) -> list[EpisodeTask]:
    """`n` games of the tournament's own seeds for an evaluation seed, both seats of each."""
    return _pairs(n, game_seeds(evaluation_seed), games, opponents, sizes)


def _pairs(
    n: int,
    seeds: Iterator[int],
    games: Sequence[str],
    opponents: Sequence[str],
    sizes: Collection[Size],
) -> list[EpisodeTask]:
    def tasks() -> Iterator[EpisodeTask]:
        for number in itertools.count():
            game = games[number % len(games)]
            opponent = opponents[number // len(games) % len(opponents)]
            seed = next(fitting_seeds(game, seeds, sizes))
            yield from (duel_task(game, seed, seat, opponent) for seat in (0, 1))

    return list(islice(tasks(), n))


def fitting_seeds(game: str, seeds: Iterator[int], sizes: Collection[Size | None]) -> Iterator[int]:
    """Those of `seeds` that draw one of these sizes, where the game has any of them."""
    if not {*game_named(game).duel_sizes} & {*sizes}:
        return seeds
    return (seed for seed in seeds if size_of(game, seed) in sizes)


def size_of(game: str, seed: int) -> Size | None:
    """Cards or board of a game by its seed; None for a game of one size."""
    played = game_named(game)
    sizes = played.duel_sizes
    return sizes[configuration_of(played, seed) % len(sizes)] if sizes else None
