"""Shares of an evaluation: every rank plays every game equally often, results keep their order."""

from collections import Counter
from collections.abc import Sequence

import pytest

from miner.config.settings import EnvironmentSettings
from miner.environments import EpisodeTask
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.evaluation.shares import joined, shares
from miner.training.episodes import task_stream

SETTINGS = (
    EnvironmentSettings(channel="duel", opponents=("random", "mcts:10")),
    EnvironmentSettings(channel="duel", games=("gin_rummy", "othello"), opponents=("random",)),
    EnvironmentSettings(channel="builtin"),
)


def result(tasks: Sequence[EpisodeTask], seconds: float = 1.0) -> EvaluationResult:
    episodes = tuple(EpisodeRecord.of(task, score=1.0) for task in tasks)
    return EvaluationResult(
        policy="model", channel="duel", environment="duel", seconds=seconds, episodes=episodes
    )


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("episodes", [120, 97])
def test_games_are_spread_evenly_and_come_back_in_order(
    settings: EnvironmentSettings, count: int, episodes: int
) -> None:
    tasks = task_stream(settings).held_out(episodes, 1)
    dealt = shares(tasks, count)
    played = [[tasks[index] for index in indices] for indices in dealt]
    for kind in ("environment", "environment opponent"):
        seen = [Counter(kind_of(task, kind) for task in share) for share in played]
        for value in {kind_of(task, kind) for task in tasks}:
            per_rank = [counts[value] for counts in seen]
            assert max(per_rank) - min(per_rank) <= 1, value
    parts = [result(share, seconds=rank) for rank, share in enumerate(played, start=1)]
    whole = joined(parts, dealt)
    assert whole == result(tasks, seconds=count)


def kind_of(task: EpisodeTask, kind: str) -> tuple[object, ...]:
    return tuple(getattr(task, name) for name in kind.split())
