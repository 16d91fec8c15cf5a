"""Playing through the loss of an inference server: weights first, then the lost episodes again.

Invariants: an episode that was played to its end with the right weights is kept; one that may have
been played with others is not; the number of recoveries is bounded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from miner.inference.engines import EngineLoss, GenerationEngine
from miner.inference.sampler import EngineLostError
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_RECOVERIES = 3
"""Of one rollout; beyond it the server will not stay up, and the orchestrator has to decide."""

Play = Callable[[Sequence[Group]], list[GroupResult]]


def play_through(
    engine: GenerationEngine, play: Play, groups: Sequence[Group]
) -> list[GroupResult]:
    """Play `groups` with the engine's current weights.

    Raises: `EngineLostError` if the engine is lost for good.
    """
    with engine.playing():
        results = play(groups)
        for loss in _engine_losses(engine):
            results = _again(results, play) if loss.noticed else play(groups)
        return results


def repeat_until_held(engine: GenerationEngine, play: Callable[[], T]) -> T:
    """What `play` gives when the engine is not lost meanwhile. Raises: `EngineLostError`."""
    with engine.playing():
        result = play()
        for _ in _engine_losses(engine):
            result = play()
        return result


def _engine_losses(engine: GenerationEngine) -> Iterator[EngineLoss]:
    """Each loss of the engine, after it has recovered from it. Raises: `EngineLostError`."""
    for _ in range(MOST_RECOVERIES):
        loss = engine.engine_loss()
        if loss is None:
            return
        logger.warning("inference was lost while episodes were played: %s", loss.line)
        engine.recover()
        yield loss
    loss = engine.engine_loss()
    if loss is not None:
        raise EngineLostError(
            f"inference was lost {MOST_RECOVERIES + 1} times in one rollout: {loss.line}"
        )


def _again(results: list[GroupResult], play: Play) -> list[GroupResult]:
    """Play what the engine lost once more; everything else stays as it is."""
    missing = [sum(map(_engine_lost, result.outcomes)) for result in results]
    again = [
        Group(result.group.task, count)
        for result, count in zip(results, missing, strict=True)
        if count
    ]
    played = iter(play(again) if again else ())
    return [
        _merged(result, next(played)) if count else result
        for result, count in zip(results, missing, strict=True)
    ]


def _merged(result: GroupResult, second: GroupResult) -> GroupResult:
    fresh = iter(second.outcomes)
    outcomes = tuple(next(fresh) if _engine_lost(o) else o for o in result.outcomes)
    return replace(result, outcomes=outcomes)


def _engine_lost(outcome: Outcome) -> bool:
    return isinstance(outcome, LostEpisode) and isinstance(outcome.error, EngineLostError)
