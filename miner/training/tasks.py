"""The stream of tasks to learn from: a pure function of the seed, the same after a resume."""

from __future__ import annotations

import json
from dataclasses import asdict

from datasets import Dataset

from miner.channels.registry import make_channel
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings, Settings
from miner.environments import EpisodeTask, TaskStream


def task_stream(settings: EnvironmentSettings) -> TaskStream:
    """The tasks of `environment.channel`. Raises: `ConfigurationError`."""
    return make_channel(settings).tasks


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
