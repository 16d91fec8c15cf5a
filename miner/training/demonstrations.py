"""A warm start: the first steps learn from teachers' moves and mounted data, not from own games.

A demonstration is one row for each legal reply that the teacher's values leave a share of, with
that share as its weight: the loss is the cross-entropy, as with credit over all legal moves.
Today's tournament permits supervised learning on self-generated data and on the data sets that a
miner has requested; the first format's rules forbid it, so the setting is off.

Invariants:
* the rows of a step are a function of the run's seed and the step: a resumed run has the same ones;
* no two decisions of a process have one prompt in a step;
* a teacher that fails or takes too long loses its rows, and not the run.

The games of the next steps are played and encoded beside the trainer (`teachers`) while the model
learns, those of the first while the base is evaluated; mounted data are encoded in a thread then.
"""

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from itertools import chain, pairwise
from random import Random
from statistics import fmean
from threading import Lock, Thread
from typing import Any

from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel.environment import DuelSource
from miner.environments import EnvironmentSource
from miner.recorded.conversations import read_conversations
from miner.recorded.rows import RecordedRows
from miner.rollout.renderer import ChatRenderer
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow
from miner.training.rollout_function import RolloutFunction, TrlRollout, unplayed_columns
from miner.training.teacher_process import TeacherProcess
from miner.training.teachers import EncodedDemonstration, Teachers

logger = logging.getLogger(__name__)

MOST_SECONDS = 300.0
"""Longest wait for a step's demonstrations; the run then goes on without any."""

Made = tuple[list[EncodedDemonstration], list[RolloutRow]]
"""A step's: of teachers, and rows of mounted data."""


class WarmStart:
    """Rows of the steps that a run begins with; the teachers play from here on.

    Args:
        ranks: each has its own rows.
        step: the first that is wanted.
        source: duels, for their wording and the family of the model's calls.
        data: conversations of mounted data sets, half of each step's replies; None without any.
    """

    def __init__(
        self,
        settings: Settings,
        ranks: Ranks,
        renderer: ChatRenderer,
        source: DuelSource,
        data: RecordedRows | None = None,
        step: int = 0,
    ) -> None:
        self._wanted = settings.demonstrations
        self._eos = renderer.eos_token_id
        self._ranks = ranks
        self._data = data

        def teachers_of() -> Teachers:
            own = deepcopy(renderer), source.wording, deepcopy(source.counter), source.family
            return Teachers(settings, ranks.rank, ranks.count, *own)

        teachers = [teachers_of() for _ in range(max(1, self._wanted.processes))]
        self._count, self._drawn = teachers[0].count, teachers[0].drawn
        self._workers = [*map(TeacherProcess, teachers)] if self._wanted.processes else teachers
        self._locks, self._reading = [Lock() for _ in self._workers], Lock()
        self._late = False
        self._ahead: dict[int, Future[Made]] = {}
        self.prepare(step)

    def before(self, rollout: RolloutFunction, fraction: Callable[[int], float]) -> TrlRollout:
        """The callable for `GRPOTrainer(rollout_func=...)`: demonstrations, in as many parts as
        there are prompts, then `rollout`'s own games.

        Args:
            fraction: optimizer step -> used-up share of the run.
        """

        def play(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
            step = trainer.state.global_step
            used = self._ranks.broadcast(fraction(step))
            if used >= self._wanted.share < 1.0:
                self._end()
                return rollout(prompts, trainer)
            rows = self.rows(step, every=trainer.takes_trees)
            missing = self._ranks.gather((not rows, self._late))
            if any(late for _, late in missing):
                self._late = True
                self._end()
            if any(none for none, _ in missing):  # all ranks play, or none
                return rollout(prompts, trainer)
            rollout.latest = RolloutStats.of([])
            count = len(prompts)  # a decision's rows stay next to each other
            ends = [len(rows) * part // count for part in range(count + 1)]
            parts = [rows[start:end] for start, end in pairwise(ends)]
            return unplayed_columns(parts, self._eos)

        return play

    def prepare(self, step: int) -> Future[Made]:
        """Have the demonstrations of a step made, and of as many after it as there are workers,
        unless they are being made already."""
        wanted = range(step, step + len(self._workers))
        self._ahead = {each: self._ahead.get(each) or self._begun(each) for each in wanted}
        return self._ahead[step]

    def _end(self) -> None:
        for worker in self._workers:
            if isinstance(worker, TeacherProcess):
                worker.end()

    def _begun(self, step: int) -> Future[Made]:
        made: Future[Made] = Future()
        Thread(target=self._make, args=(step, made), name="teachers", daemon=True).start()
        return made

    def _make(self, step: int, made: Future[Made]) -> None:
        number = step % len(self._workers)
        try:
            with self._locks[number]:
                taught = self._workers[number].made(step)
            made.set_result(self._with_data(taught, step))
        except Exception as error:
            made.set_exception(error)

    def _with_data(self, taught: list[EncodedDemonstration], step: int) -> Made:
        """Half of the replies from mounted data, as long as there are any."""
        if not self._data:
            return taught, []
        half = self._count // 2
        fewer = taught[: self._count - half]
        lengths = [len(ids) for each in fewer for ids in each.replies.values()]
        with self._reading:
            data = self._data.some(half, fmean(lengths or [math.inf]), self._drawn(step))
        return (fewer if data else taught), data

    def rows(self, step: int, *, every: bool = True) -> list[RolloutRow]:
        """This process's rows of a step; none if teachers take too long.

        Args:
            every: false for one reply a decision, see `taught`.
        """
        if self._late:
            return []
        try:
            made, data = self.prepare(step).result(MOST_SECONDS)
        except TimeoutError:
            self._late = True
            logger.warning("teachers took over %g s: own games are played", MOST_SECONDS)
            return []
        self.prepare(step + 1)
        draw = Random(f"{self._drawn(step)}/replies")
        rows = [each.rows(None if every else draw) for each in made]
        return [*chain.from_iterable(rows), *data]


def warm_start(
    settings: Settings,
    ranks: Ranks,
    renderer: ChatRenderer,
    source: EnvironmentSource,
    step: int = 0,
) -> WarmStart | None:
    """A run's demonstrations, if they are wanted; see `WarmStart`."""
    wanted = settings.demonstrations
    if not wanted.share:
        return None
    assert isinstance(source, DuelSource), "settings with a share have the channel of duels"
    data = None
    if wanted.datasets:
        limit = settings.rollout.episode_limit
        found = read_conversations(wanted.datasets, settings.environment.games)
        found = replace(found, trained=sorted(found.trained + found.held_out))  # judged by games
        data = RecordedRows(found, deepcopy(renderer), source.family, limit)
        logger.warning("%s", found.described)
    return WarmStart(settings, ranks, renderer, source, data, step)
