"""A warm start: the first steps learn from teachers' moves and mounted data, not from own games.

A demonstration is one row for each legal reply that the teacher's values leave a share of, with
that share as its weight: the loss is the cross-entropy, as with credit over all legal moves.
Today's tournament permits supervised learning on self-generated data and on the data sets that a
miner has requested; the first format's rules forbid it, so the setting is off.

Invariants:
* the rows of a step are a function of the run's seed and the step: a resumed run has the same ones;
* no two decisions of a process have one prompt in a step;
* a teacher that fails loses its rows, and not the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from random import Random
from typing import Any

from miner.config.settings import Settings
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.tasks import DuelTasks
from miner.duel.demonstrations import Demonstration, Style, demonstrate
from miner.environments import EnvironmentSource
from miner.rewards.all_moves import target, unsampled
from miner.rollout.renderer import ChatRenderer
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow
from miner.training.mounted_data import MountedData
from miner.training.rollout_function import RolloutFunction, columns_of

logger = logging.getLogger(__name__)


class WarmStart:
    """The callable for `GRPOTrainer(rollout_func=...)` of a run that begins with demonstrations.

    Args:
        rollout: plays the run's own games afterwards.
        fraction: optimizer step -> used-up share of the run.
        source: duels, for their wording and the family of the model's calls.
        data: rows of mounted data sets, half of each step's; None without any.
    """

    def __init__(
        self,
        settings: Settings,
        rollout: RolloutFunction,
        fraction: Callable[[int], float],
        renderer: ChatRenderer,
        source: DuelSource,
        data: MountedData | None = None,
    ) -> None:
        self._settings = settings
        self._wanted = settings.demonstrations
        self._rollout = rollout
        self._fraction = fraction
        self._renderer = renderer
        self._ranks = rollout.ranks
        self._data = data
        self._tasks = DuelTasks(settings.environment)
        self._style = Style(source.wording, source.counter, source.family, self._wanted.notes)

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Demonstrations while they last, in as many parts as there are prompts; see
        `RolloutFunction`."""
        step = trainer.state.global_step
        if self._ranks.broadcast(self._fraction(step)) >= self._wanted.share:
            return self._rollout(prompts, trainer)
        rows = self.rows(step)
        self._rollout.latest = RolloutStats.of([])
        parts = [rows[place :: len(prompts)] for place in range(len(prompts))]
        nothing: dict[str, list[Any]] = {
            "turn_rewards": [None for _ in prompts],
            "episode_reward": [0.0 for _ in prompts],
        }
        return columns_of(parts, self._renderer.eos_token_id) | nothing

    def rows(self, step: int) -> list[RolloutRow]:
        """This process's rows of a step."""
        count = max(1, self._wanted.rows // self._ranks.count)
        drawn = f"{self._settings.seed}/demonstrations/{step}/{self._ranks.rank}"
        of_data = self._data.sample(count // 2, drawn) if self._data else []
        made = self._made(Random(drawn), step)
        taught: dict[tuple[int, ...], list[RolloutRow]] = {}
        for demonstration in made:
            rows = self._rows(demonstration)
            taught[rows[0].prompt_ids] = rows
            if len(taught) >= count - len(of_data):
                break
        return [*chain.from_iterable(taught.values()), *of_data]

    def _rows(self, demonstration: Demonstration) -> list[RolloutRow]:
        """Of one prompt; their weights add up to one."""
        render, encode = self._renderer.render, self._renderer.encode
        prompt = encode(render(demonstration.messages, demonstration.tools))
        shares = target(demonstration.values, self._settings.reward.tau)
        reply_ids = self._renderer.encode_reply
        return [unsampled(prompt, reply_ids(reply), share) for reply, share in shares.items()]

    def _made(self, rng: Random, step: int) -> Iterator[Demonstration]:
        """Games one after the other, as many as the step could need."""
        ranks, games = self._ranks, self._wanted.rows
        first = step * games * ranks.count + ranks.rank
        for index in range(first, first + games * ranks.count, ranks.count):
            task = self._tasks.training(index, self._settings.seed)
            try:
                yield from demonstrate(task, self._style, rng)
            except Exception as error:
                logger.warning("%s: no demonstration: %s: %s", task, type(error).__name__, error)


def with_warm_start(
    rollout: RolloutFunction,
    settings: Settings,
    fraction: Callable[[int], float],
    renderer: ChatRenderer,
    source: EnvironmentSource,
) -> RolloutFunction | WarmStart:
    """`rollout` after demonstrations, if they are wanted; see `WarmStart`."""
    wanted = settings.demonstrations
    if not wanted.share:
        return rollout
    assert isinstance(source, DuelSource), "settings with a share have the channel of duels"
    data = None
    if wanted.datasets:
        data = MountedData(wanted.datasets, renderer, source.family, settings.rollout.episode_limit)
        logger.warning("%s", data.described)
    return WarmStart(settings, rollout, fraction, renderer, source, data)
