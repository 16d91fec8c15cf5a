"""Teachers' decisions of a step in token ids."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.duel.channel.tasks import DuelTasks, duel_of
from miner.duel.demonstrations import Demonstration, Style, demonstrate
from miner.duel.memory import TokenCounter
from miner.duel.own import taught_by
from miner.duel.wording import Wording
from miner.environments.base import EpisodeTask
from miner.rewards.all_moves import target, taught
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import RolloutRow

logger = logging.getLogger(__name__)

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


class Teachers:
    """Plays demonstrations.

    Args:
        rank: of the process that learns from them, among `ranks`; each has its own games.
        renderer: for this object alone: two threads must not use one tokenizer at once.
        wording, counter, family: of the channel's requests, notes and calls.

    Raises: `ConfigurationError` for a teacher of the user's that cannot be imported.
    """

    def __init__(
        self,
        settings: Settings,
        rank: int,
        ranks: int,
        renderer: ChatRenderer,
        wording: Wording,
        counter: TokenCounter,
        family: str,
    ) -> None:
        self._given = settings, rank, ranks, renderer, wording, counter, family
        self._settings = settings
        self._wanted = settings.demonstrations
        self._renderer = renderer
        self._rank, self._ranks = rank, ranks
        self._tasks = DuelTasks(settings.environment)
        self._style = Style(
            *(wording, counter, family, settings.environment.notes),
            taught_by(self._wanted.teacher),
            settings.reward.named,
        )
        self.count = max(1, self._wanted.rows // ranks)
        self._slow: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Teachers, self._given

    def drawn(self, step: int) -> str:
        """Seed of what is drawn for a step."""
        return f"{self._settings.seed}/demonstrations/{step}/{self._rank}"

    def made(self, step: int) -> list[EncodedDemonstration]:
        """Those of a step, `count` at most. Raises: `ConfigurationError` of the user's teacher."""
        return [*map(self._encoded, self._demonstrations(step)[: self.count])]

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
        ranks, games, rng = self._ranks, self._wanted.rows, Random(self.drawn(step))
        named: Sequence[str] = self._settings.environment.games
        room = {game: math.ceil(self.count * named.count(game) / len(named)) for game in named}
        first = step * games * ranks + self._rank
        found: dict[tuple[str, ...], Demonstration] = {}
        for index in range(first, first + games * ranks, ranks):
            task = self._tasks.training(index, self._settings.seed)
            game = duel_of(task)[0].name
            most = room[game] if any(room.values()) else self.count - len(found)
            made = self._demonstrated(task, rng) if most else []
            if len(made) > most:  # notes come first in them, and are few of a game's decisions
                made = Random(f"{task}").sample(made, len(made))
            for demonstration in made:
                texts = tuple(message["content"] for message in demonstration.messages)
                if most and texts not in found:
                    found[texts] = demonstration
                    most -= 1
            room[game] = most if made else 0
            if not any(room.values()) and len(found) >= self.count:
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
