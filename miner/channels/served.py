"""The channels `auto`, `step`, `graded` and `builtin`: the tournament's games, on servers or here.

Invariants of the tasks: every deck size and both seats appear equally often; no graded or held-out
game is ever trained on (`TRAINING_SEEDS` is apart from theirs).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

from miner.channels.base import Channel, Lengths
from miner.config.contract import DECK_SIZES
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.environments.base import EnvironmentSource, EpisodeTask
from miner.environments.errors import InfrastructureError
from miner.environments.findings import Findings
from miner.environments.games.longest import longest_conversation, shortest_conversation
from miner.environments.probe import open_source
from miner.environments.probe_report import ProbeReport
from miner.evaluation.grader import TRAINING_SEEDS, episode_list, held_out_list
from miner.games import game_named
from miner.rollout.renderer import ChatRenderer

AUTO, BUILTIN = "auto", "builtin"


class ServedChannel(Channel):
    """A game on servers that the probe has looked at."""

    split = "grader"
    _report: ProbeReport | None = None

    def make_tasks(self) -> GameTasks:
        return GameTasks(self.settings)

    async def open(
        self, found: Findings | None = None, *, patience_s: float = 0.0
    ) -> EnvironmentSource:
        """Probe the servers, unless they have been, and connect to those that are of use."""
        wanted = self.settings
        if not wanted.servers and wanted.channel != BUILTIN:
            raise ConfigurationError(
                "no environment server is given: set ENVIRONMENT_SERVER_URLS=http://host:port[,...]"
                ", or environment.channel=builtin to play in this process"
            )
        source, self._report = await open_source(
            wanted.servers,
            cast(Any, wanted.channel),
            wanted.name,
            report=found.for_opening if found else None,
            patience_s=patience_s,
        )
        return source

    async def check(self, source: EnvironmentSource) -> Findings:
        """Return what the probe found. Raises: `InfrastructureError` if no server is of any use."""
        assert self._report is not None
        problems = [server.problem for server in self._report.servers]
        if problems and all(problems) and self.settings.channel == AUTO:
            raise InfrastructureError(
                f"no environment server can be used ({problems[0]}): start one, correct "
                "ENVIRONMENT_SERVER_URLS, or set environment.channel=builtin"
            )
        return self._report.findings(self.settings.channel)

    def compared(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """The grader's own list, of the chosen deck sizes, against the chosen opponent."""
        sizes, opponent = self.settings.deck_sizes, self.settings.opponent
        some = sizes if set(sizes) != set(DECK_SIZES) else ()
        tasks = episode_list(count, base_seed, self.settings.name, sizes=some)
        return [replace(task, opponent=opponent) for task in tasks]

    def lengths(self, tasks: Sequence[EpisodeTask], renderer: ChatRenderer) -> Lengths:
        """In the longest conversation every turn is asked as often as it can be."""
        longest, shortest = longest_conversation(tasks), shortest_conversation(tasks)
        return Lengths(
            shortest=len(renderer.encode(renderer.render(shortest))),
            longest=len(renderer.encode(renderer.render(longest))),
            replies=sum(message["role"] == "assistant" for message in longest),
        )

    def described(self, source: EnvironmentSource) -> str:
        report = self._report
        assert report is not None
        if self.settings.channel == AUTO:
            return f"channel {source.name}: {report.reason}"
        if source.name == BUILTIN and report.prompt_format is None:
            return "builtin without a server to learn from: prompts are in our own words"
        return ""


class GameTasks:
    """`TaskStream` of the game that `environment.name` names, for all channels that play games."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings

    @property
    def name(self) -> str:
        """The game's name."""
        return self._settings.name

    def training(self, index: int, seed: int) -> EpisodeTask:
        """Sizes and seats come in shuffled cycles, so that each stretch is balanced."""
        kinds = self._kinds()
        cycle, position = divmod(index, len(kinds))
        random.Random(f"{seed}/cycle/{cycle}").shuffle(kinds)
        deck_size, seat = kinds[position]
        rng = random.Random(f"{seed}/game/{index}")
        game = game_named(self.name)
        task_id = rng.randint(*game.task_ids)
        if deck_size is not None:
            task_id += game.sizes.index(deck_size) - task_id % len(game.sizes)
        drawn = rng.randrange(TRAINING_SEEDS.start // 2 + 1, TRAINING_SEEDS.stop // 2 - 1)
        return EpisodeTask(
            environment=self.name,
            task_id=task_id,
            seed=2 * drawn + seat,
            opponent=self._settings.opponent,
        )

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        sizes = self._settings.deck_sizes if game_named(self.name).sizes else ()
        tasks = held_out_list(count, base_seed, self.name, sizes=sizes)
        return [replace(task, opponent=self._settings.opponent) for task in tasks]

    def _kinds(self) -> list[tuple[int | None, int]]:
        """Deck sizes and seats."""
        sizes = self._settings.deck_sizes if game_named(self.name).sizes else (None,)
        return list(product(sizes, (0, 1)))
