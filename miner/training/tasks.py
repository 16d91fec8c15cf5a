"""The stream of tasks to learn from: a pure function of the seed, the same after a resume.

Invariants of games: every deck size and both seats appear equally often; no graded or held-out game
is ever trained on (`TRAINING_SEEDS` is apart from theirs).
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from itertools import product

from datasets import Dataset

from miner.config.contract import DECK_SIZES, DUEL_CHANNEL, GOOFSPIEL
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings, Settings
from miner.duel.channel.tasks import DuelTasks
from miner.environments import EpisodeTask, TaskStream
from miner.environments.games import task_id_range
from miner.evaluation.channels import CHANNELS
from miner.evaluation.grader import TRAINING_SEEDS, held_out_list


class GameTasks:
    """`TaskStream` of the game that `environment.name` names, for all channels that play games."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """The game's name."""
        return self._settings.name

    @property
    def kinds(self) -> int:
        """See `TaskStream`."""
        return len(self._kinds())

    def training(self, index: int, seed: int) -> EpisodeTask:
        """See `TaskStream`.

        Sizes and seats come in shuffled cycles, so that every stretch of the stream is balanced.
        """
        kinds = self._kinds()
        cycle, position = divmod(index, len(kinds))
        random.Random(f"{seed}/cycle/{cycle}").shuffle(kinds)
        deck_size, seat = kinds[position]
        rng = random.Random(f"{seed}/game/{index}")
        lowest, highest = task_id_range(self.name)
        task_id = rng.randint(lowest, highest)
        if deck_size is not None:
            task_id += DECK_SIZES.index(deck_size) - task_id % 5
        drawn = rng.randrange(TRAINING_SEEDS.start // 2 + 1, TRAINING_SEEDS.stop // 2 - 1)
        return EpisodeTask(
            environment=self.name,
            task_id=task_id,
            seed=2 * drawn + seat,
            opponent=self._settings.opponent,
        )

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """See `TaskStream`."""
        sizes = self._settings.deck_sizes if self.name == GOOFSPIEL else ()
        return held_out_list(count, base_seed, self.name, sizes=sizes)

    def _kinds(self) -> list[tuple[int | None, int]]:
        """Deck sizes and seats."""
        sizes = self._settings.deck_sizes if self.name == GOOFSPIEL else (None,)
        return list(product(sizes, (0, 1)))


def task_stream(settings: EnvironmentSettings) -> TaskStream:
    """What `environment.channel` plays. Raises: `ConfigurationError`."""
    if settings.channel == DUEL_CHANNEL:
        return DuelTasks(settings)
    channel = CHANNELS.get(settings.channel)
    return channel(settings).tasks if channel else GameTasks(settings)


def training_dataset(settings: Settings) -> Dataset:
    """One row per task for all planned steps; TRL repeats each row `group_size` times."""
    games = settings.optimizer.max_steps * settings.rollout.groups_per_step
    if games > 5_000_000:
        raise ConfigurationError(
            f"optimizer.max_steps x rollout.groups_per_step is {games:,} games: at most 5,000,000 "
            "are planned ahead; lower optimizer.max_steps"
        )
    tasks = task_stream(settings.environment)
    prompts = [encode_task(tasks.training(i, settings.seed)) for i in range(games)]
    return Dataset.from_dict({"prompt": prompts})


def encode_task(task: EpisodeTask) -> str:
    """A task as the text that travels through TRL's `prompt` column."""
    return json.dumps(asdict(task), sort_keys=True)


def decode_task(prompt: str) -> EpisodeTask:
    """The inverse of `encode_task`."""
    return EpisodeTask(**json.loads(prompt))
