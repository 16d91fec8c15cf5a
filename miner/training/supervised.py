"""Supervised learning on recorded conversations, judged by held-out ones.

Invariant: the conversations of a step are a function of the run's seed and the step, so that a
resumed run has the same ones, and none comes again before all have come.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentSource, EpisodeTask
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.evaluation.shares import joined, shares
from miner.learning.forest import Row
from miner.learning.tree_trainer import TreeTrainer
from miner.recorded.environment import RecordedSource
from miner.recorded.rows import RecordedRows
from miner.rollout.renderer import ChatRenderer
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow
from miner.training.rollout_function import RolloutFunction, unplayed_columns


class Supervised:
    """The callable for `GRPOTrainer(rollout_func=...)` of a run that samples nothing: a
    conversation for each prompt. Those of the next step are encoded in a thread meanwhile.

    Args:
        rollout: of the run, which has no statistics then.
    """

    def __init__(
        self,
        settings: Settings,
        renderer: ChatRenderer,
        source: EnvironmentSource,
        rollout: RolloutFunction,
    ) -> None:
        self._rows = recorded_rows(settings, deepcopy(renderer), source)
        self._thread = ThreadPoolExecutor(1, "recorded")
        self._ahead: dict[int, Future[list[list[RolloutRow]]]] = {}
        self._rollout = rollout
        self._seed = settings.seed
        self._eos = renderer.eos_token_id

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Rows of as many conversations; see `RolloutFunction`."""
        step, count = trainer.state.global_step, len(prompts)
        begun = self._ahead.get(step) or self._thread.submit(self._parts, step, count)
        self._ahead = {step + 1: self._thread.submit(self._parts, step + 1, count)}
        parts = begun.result()
        lengths = [len(row.prompt_ids) + len(row.completion_ids) for part in parts for row in part]
        total = self._rollout.ranks.count * sum(lengths)
        self._rollout.latest = RolloutStats(total_tokens=total)
        return unplayed_columns(parts, self._eos)

    def _parts(self, step: int, count: int) -> list[list[RolloutRow]]:
        ranks = self._rollout.ranks
        numbers = self._rows.batch((step * ranks.count + ranks.rank) * count, count, self._seed)
        return [self._rows.of(number) for number in numbers]


def recorded_rows(
    settings: Settings, renderer: ChatRenderer, source: EnvironmentSource
) -> RecordedRows:
    """Rows of the channel's conversations."""
    assert isinstance(source, RecordedSource), "these settings have the channel recorded"
    limit = settings.rollout.episode_limit
    return RecordedRows(source.conversations, renderer, source.family, limit)


def with_rows(rows: RecordedRows, tasks: Iterable[EpisodeTask], count: int) -> list[EpisodeTask]:
    """The first `count` of held-out conversations of which a reply can be scored.

    Raises: `ConfigurationError` where there is none.
    """
    found = [*islice((task for task in tasks if rows.of(task.task_id)), count)]
    if not found:
        raise ConfigurationError(
            "no reply of the held-out conversations is as short as a turn may be and fits into "
            "rollout.max_episode_tokens: raise it, or name other data sets"
        )
    return found


def likelihood(
    rows: RecordedRows,
    trainer: TreeTrainer,
    ranks: Ranks,
    tasks: Sequence[EpisodeTask],
    play: Callable[[], EvaluationResult],
) -> EvaluationResult:
    """Evaluate on held-out conversations; collective.

    Adapters are scored beside their base, so that the rounding of what is published is not seen.

    Args:
        play: has the model reply in them, to judge its form.

    Returns: the result of `play`, with the geometric mean of the probabilities of the recorded
        tokens as scores; None for a conversation of which no reply fits, or that there was no time
        to play.
    """
    dealt = shares(tasks, ranks.count)
    made = [rows.of(tasks[index].task_id) for index in dealt[ranks.rank]]
    found = iter(trainer.logprobs_of([_row(row) for some in made for row in some]))
    played = play()  # last, as it ends where the time does
    mine = [played.episodes[index] for index in dealt[ranks.rank]]
    scored = (
        _scored(record, islice(found, len(rows))) for record, rows in zip(mine, made, strict=True)
    )
    part = played.model_copy(update={"episodes": tuple(scored), "likelihoods": True})
    return joined(ranks.gather(part), dealt)


def _row(row: RolloutRow) -> Row:
    places = np.flatnonzero(row.loss_mask) + len(row.prompt_ids)
    return Row(np.array([*row.prompt_ids, *row.completion_ids]), places)


def _scored(record: EpisodeRecord, logprobs: Iterable[Any]) -> EpisodeRecord:
    lines = list(logprobs)
    if record.failure == "no_time":  # its form was not seen
        return record
    tokens, total = sum(map(len, lines)), sum(float(line.sum()) for line in lines)
    return record.model_copy(update={"score": math.exp(total / tokens) if tokens else None})
