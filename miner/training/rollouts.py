"""A step's episodes: played when it wants them or, with `rollout.ahead`, one step before.

Invariants:
* a step trains on its own tasks whenever they are played: what a kill, or the end of training,
  takes away is played again by whoever goes on;
* weights travel only while nobody samples: whoever wants others in the engine has what is under way
  finished first;
* what was played ahead comes from the weights before the last update, with the logprobs it was
  sampled with; after a return to older weights it is played anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from miner.background_loop import BackgroundLoop, Running
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.inference.engines import GenerationEngine
from miner.rollout.groups import Group, GroupResult
from miner.rollout.scheduler import Scheduler
from miner.training.recovery import made_good, play_through
from miner.training.tasks import planned_tasks
from miner.training.trainer import EpisodeTrainer

logger = logging.getLogger(__name__)


@dataclass
class _Ahead:
    """The next step's groups, under way or played."""

    groups: Sequence[Group]
    halvings: int
    running: Running[list[GroupResult]]
    results: list[GroupResult] | None = None


class Rollouts(TrainerCallback):
    """Plays each step's groups on one rank. All methods but `drop` are collective.

    Args:
        scheduler: plays groups, at the run's temperature.
    """

    def __init__(
        self,
        settings: Settings,
        engine: GenerationEngine,
        loop: BackgroundLoop,
        ranks: Ranks,
        scheduler: Callable[[], Scheduler],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._loop = loop
        self._ranks = ranks
        self._scheduler = scheduler
        self._ahead: _Ahead | None = None

    def play(self, groups: Sequence[Group], trainer: EpisodeTrainer) -> list[GroupResult]:
        """Play a step's groups.

        What an engine lost is played again as it was: members of a group share their game. With
        `rollout.ahead` these have been played, and the next step's are under way afterwards.
        """
        step = trainer.state.global_step
        results = self._played_ahead(groups, trainer.halvings)
        if results is None:
            results = play_through(self._engine, self._play_now, groups)
        if self._settings.rollout.ahead and step + 1 < trainer.state.max_steps:
            self._begin(step + 1, trainer.halvings)
        return results

    def freshen(self) -> None:
        """Have the engine hold the current weights, once nobody samples."""
        self.settle()
        self._engine.freshen()

    def settle(self) -> None:
        """Wait until what is under way has been played."""
        ahead = self._ahead
        if ahead is None or ahead.results is not None:
            return
        ahead.results = made_good(
            self._engine, ahead.running.result(), self._play_now, ahead.groups
        )

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is under way while a step's end evaluates, publishes and saves."""
        self.settle()

    def drop(self) -> None:
        """Give up what was played ahead: nobody will train on it."""
        if self._ahead is not None:
            self._ahead.running.cancel()
            self._ahead = None

    def _begin(self, step: int, halvings: int) -> None:
        """Start on the episodes of the step that follows `step` others."""
        self._engine.freshen()
        ranks, size = self._ranks, self._settings.rollout.group_size
        tasks = planned_tasks(self._settings, step, ranks.rank, ranks.count)
        groups = [Group(task, size) for task in tasks]
        running = self._loop.start(self._scheduler().run(groups))
        self._ahead = _Ahead(groups, halvings, running)

    def _played_ahead(self, groups: Sequence[Group], halvings: int) -> list[GroupResult] | None:
        """What was played of these groups, None if nothing was that is still of use."""
        self.settle()
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if (ahead.groups, ahead.halvings) == (groups, halvings):
            return ahead.results
        logger.warning("what was played ahead is of other weights or games: it is played anew")
        return None

    def _play_now(self, groups: Sequence[Group]) -> list[GroupResult]:
        return self._loop.run(self._scheduler().run(groups))
