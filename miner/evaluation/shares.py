"""Ranks' shares of an evaluation's tasks, and the one result of all shares.

Invariants: every task is in exactly one share; a game against an opponent comes up equally often in
every share, but for one; the result has the order of the tasks.
"""

from collections.abc import Sequence

from miner.environments import EpisodeTask
from miner.evaluation.results import EvaluationResult


def shares(tasks: Sequence[EpisodeTask], count: int) -> list[list[int]]:
    """Indices of the tasks of each of `count` ranks, in the order of the tasks.

    Games differ in length, and ranks wait for the slowest. Lists of games that take turns would
    give some games to some ranks only if every `count`-th task were taken.
    """
    kinds = [(task.environment, task.opponent) for task in tasks]
    by_kind = sorted(range(len(tasks)), key=kinds.__getitem__)
    return [sorted(by_kind[rank::count]) for rank in range(count)]


def joined(parts: Sequence[EvaluationResult], dealt: Sequence[Sequence[int]]) -> EvaluationResult:
    """One result of `parts`, the results of the `shares`."""
    if len(parts) == 1:
        return parts[0]
    played = {
        index: episode
        for part, indices in zip(parts, dealt, strict=True)
        for index, episode in zip(indices, part.episodes, strict=True)
    }
    episodes = tuple(played[index] for index in sorted(played))
    seconds = max(part.seconds for part in parts)
    return parts[0].model_copy(update={"episodes": episodes, "seconds": seconds})
