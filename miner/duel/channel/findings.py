"""What a look at a model tells of its duels: how its calls are read, and what a turn costs it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from miner.config.contract import DUEL_CHANNEL, DUEL_REPLY_TOKENS
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.longest import turn_tokens
from miner.duel.channel.tasks import duel_of, evaluation_duels
from miner.environments.base import Message
from miner.rollout.model_folder import load_chat

GAMES_TRIED = 4
"""Of each game, to find its longest turn."""


@dataclass(frozen=True, slots=True)
class DuelFindings:
    """How a model will meet others.

    Attributes:
        family: the parser of its calls, by the serving engine's names.
        prompts: whose sentences the prompts have.
        shows_tools: whether its chat template puts the tools into the prompt at all.
        context: tokens that it can attend to; None where its configuration does not say.
        tokens: of each game's longest prompt, notes as full as can be.
    """

    family: str
    prompts: str
    shows_tools: bool
    context: int | None
    tokens: dict[str, int]

    @property
    def too_long(self) -> list[str]:
        """Games whose longest turns would be forfeited: no room is left for a reply."""
        most = self.context
        if most is None:
            return []
        return [game for game, n in self.tokens.items() if n + DUEL_REPLY_TOKENS > most]

    @property
    def warning(self) -> str:
        """What a person has to know; empty for nothing."""
        found = []
        if not self.shows_tools:
            found.append("the chat template shows no tools: the model has to know calls by itself")
        if self.too_long:
            found.append(
                f"a context of {self.context:,} tokens forfeits long turns of "
                f"{', '.join(self.too_long)}"
            )
        return "; ".join(found)

    @property
    def reason(self) -> str:
        """One line."""
        return f"calls are read as {self.family}, prompts are in {self.prompts}"

    def shown(self) -> RenderableType:
        """For a terminal."""
        table = Table("game", "longest prompt", box=None, pad_edge=False)
        table.columns[1].justify = "right"
        for game, tokens in self.tokens.items():
            table.add_row(game, f"{tokens:,} tokens")
        head = f"channel {DUEL_CHANNEL}: {self.reason}"
        return Group(head, table)

    def to_json(self) -> dict[str, Any]:
        """For `probe.json`."""
        return {
            "channel": DUEL_CHANNEL,
            "reason": self.reason,
            "warning": self.warning,
            **asdict(self),
        }


def look_at(model: Path, games: Sequence[str], source: DuelSource) -> DuelFindings:
    """Look at the model in a folder. Raises: `ConfigurationError` if it cannot be talked to."""
    renderer = load_chat(model).renderer
    tasks = evaluation_duels(2 * GAMES_TRIED * len(games), 1, games, "random")
    tokens = turn_tokens(tasks, source.wording, renderer)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    chat: list[Message] = [{"role": "user", "content": "Your move?"}]
    tool = {"type": "function", "function": {"name": "probing", "parameters": {}}}
    return DuelFindings(
        family=source.family,
        prompts=source.wording.described,
        shows_tools="probing" in renderer.render(chat, [tool]),
        context=config.get("max_position_embeddings"),
        tokens={duel_of(task)[0].name: tokens[task.environment] for task in tasks},
    )
