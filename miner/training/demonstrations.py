"""A warm start: the first steps learn from teachers' moves and mounted data, not from own games.

A demonstration is one row for each legal reply that the teacher's values leave a share of, with
that share as its weight: the loss is the cross-entropy, as with credit over all legal moves.
Today's tournament permits supervised learning on self-generated data and on the data sets that a
miner has requested; the first format's rules forbid it, so the setting is off.

Invariants:
* the rows of a step are a function of the run's seed and the step: a resumed run has the same ones;
* no two decisions of a process have one prompt in a step;
* a teacher that fails or takes too long loses its rows, and not the run.

The games of the next step are played and encoded in a thread while the model learns, those of the
first while the base is evaluated; the thread has a tokenizer that no other uses.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, pairwise
from random import Random
from statistics import fmean
from threading import Thread
from typing import Any

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.tasks import DuelTasks, duel_of
from miner.duel.demonstrations import Demonstration, Style, demonstrate
from miner.duel.own import taught_by
from miner.environments import EnvironmentSource
from miner.environments.base import EpisodeTask
from miner.recorded.conversations import read_conversations
from miner.recorded.rows import RecordedRows
from miner.rewards.all_moves import target, taught
from miner.rollout.renderer import ChatRenderer
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow
from miner.training.rollout_function import RolloutFunction, TrlRollout, unplayed_columns

logger = logging.getLogger(__name__)

MOST_SECONDS = 300.0
"""Longest wait for a step's demonstrations; the run then goes on without any."""

SLOW_SECONDS = 60.0
"""Processor time of a game: a teacher that takes longer is not asked again. Solving Liar's dice
takes ten, which are minutes where other work has the cores."""


@dataclass(frozen=True, slots=True)
class EncodedDemonstration:
    """A demonstration in token ids.

    Attributes:
        shares: of each reply that is taught, which add up to one.
        replies: their ids, each with the token that ends it.
    """

    prompt: tuple[int, ...]
    shares: Mapping[str, float]
    replies: Mapping[str, tuple[int, ...]]

    def rows(self, draw: Random | None) -> list[RolloutRow]:
        """Their weights add up to one; with `draw` it is a single one."""
        return taught(self.prompt, self.shares, self.replies.__getitem__, draw)


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
        self._settings = settings
        self._wanted = settings.demonstrations
        self._renderer = renderer.copy()
        self._eos = renderer.eos_token_id
        self._ranks = ranks
        self._data = data
        self._tasks = DuelTasks(settings.environment)
        self._style = Style(
            *(source.wording, source.counter, source.family, settings.environment.notes),
            taught_by(self._wanted.teacher),
            settings.reward.named,
        )
        self._count = max(1, self._wanted.rows // self._ranks.count)
        self._slow: set[str] = set()
        self._late = False
        self._ahead: tuple[int, Future[list[EncodedDemonstration]]] | None = None
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
                return rollout(prompts, trainer)
            rows = self.rows(step, every=trainer.takes_trees)
            if self._ranks.most(not rows):  # all ranks play, or none
                return rollout(prompts, trainer)
            rollout.latest = RolloutStats.of([])
            count = len(prompts)  # a decision's rows stay next to each other
            ends = [len(rows) * part // count for part in range(count + 1)]
            parts = [rows[start:end] for start, end in pairwise(ends)]
            return unplayed_columns(parts, self._eos)

        return play

    def prepare(self, step: int) -> Future[list[EncodedDemonstration]]:
        """Have the demonstrations of a step made, unless they are being made already."""
        if self._ahead is None or self._ahead[0] != step:
            made: Future[list[EncodedDemonstration]] = Future()
            Thread(target=self._make, args=(step, made), name="teachers", daemon=True).start()
            self._ahead = step, made
        return self._ahead[1]

    def rows(self, step: int, *, every: bool = True) -> list[RolloutRow]:
        """This process's rows of a step; none if teachers take too long.

        Args:
            every: false for one reply a decision, see `taught`.
        """
        if self._late:
            return []
        try:
            made = self.prepare(step).result(MOST_SECONDS)
        except TimeoutError:
            self._late = True
            logger.warning("teachers took over %g s: own games are played", MOST_SECONDS)
            return []
        self.prepare(step + 1)
        draw = Random(f"{self._drawn(step)}/replies")
        rows = [each.rows(None if every else draw) for each in made]
        if self._data:
            half = self._count // 2
            played = [*chain.from_iterable(rows[: self._count - half])]
            usual = fmean(len(row.completion_ids) for row in played) if played else math.inf
            if data := self._data.some(half, usual, self._drawn(step)):
                return [*played, *data]
        return [*chain.from_iterable(rows)]

    def _make(self, step: int, made: Future[list[EncodedDemonstration]]) -> None:
        try:
            made.set_result([*map(self._encoded, self._demonstrations(step)[: self._count])])
        except Exception as error:
            made.set_exception(error)

    def _encoded(self, demonstration: Demonstration) -> EncodedDemonstration:
        renderer = self._renderer
        prompt = renderer.encode(renderer.render(demonstration.messages, demonstration.tools))
        shares = target(demonstration.values, self._settings.reward.tau)
        return EncodedDemonstration(
            prompt, shares, {reply: renderer.encode_reply(reply) for reply in shares}
        )

    def _demonstrations(self, step: int) -> list[Demonstration]:
        """Those of a step, each with another prompt; fewer only where teachers fail.

        A game has the share of them that it has of `environment.games`, however long it is; where
        a teacher fails, the other games have more.
        """
        ranks, games, rng = self._ranks, self._wanted.rows, Random(self._drawn(step))
        named: Sequence[str] = self._settings.environment.games
        room = {game: math.ceil(self._count * named.count(game) / len(named)) for game in named}
        first = step * games * ranks.count + ranks.rank
        found: dict[tuple[str, ...], Demonstration] = {}
        for index in range(first, first + games * ranks.count, ranks.count):
            task = self._tasks.training(index, self._settings.seed)
            game = duel_of(task)[0].name
            most = room[game] if any(room.values()) else self._count - len(found)
            made = self._demonstrated(task, rng) if most else []
            if len(made) > most:  # notes come first in them, and are few of a game's decisions
                made = Random(f"{task}").sample(made, len(made))
            for demonstration in made:
                texts = tuple(message["content"] for message in demonstration.messages)
                if most and texts not in found:
                    found[texts] = demonstration
                    most -= 1
            room[game] = most if made else 0
            if not any(room.values()) and len(found) >= self._count:
                break
        return rng.sample([*found.values()], len(found))  # fewer of them are some of each game

    def _demonstrated(self, task: EpisodeTask, rng: Random) -> list[Demonstration]:
        """A game's, none where its teacher fails or was too slow before."""
        if task.environment in self._slow:
            return []
        began = time.thread_time()
        try:
            made = demonstrate(task, self._style, rng)
        except ConfigurationError:  # of the user's own teacher
            raise
        except Exception as error:
            logger.warning("%s: no demonstration: %s: %s", task, type(error).__name__, error)
            made = []
        if time.thread_time() - began > SLOW_SECONDS:
            self._slow.add(task.environment)
            logger.warning("%s: its teacher is too slow and asked no more", task.environment)
        return made

    def _drawn(self, step: int) -> str:
        return f"{self._settings.seed}/demonstrations/{step}/{self._ranks.rank}"


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
        found = read_conversations(wanted.datasets)
        data = RecordedRows(found, renderer, source.family, limit)
        logger.warning("%s", found.described)
    return WarmStart(settings, ranks, renderer, source, data, step)
