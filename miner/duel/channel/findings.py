"""Findings about a model's duels: the parser of its calls, and the tokens of a turn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from miner.config.contract import DUEL_CHANNEL, DUEL_REPLY_TOKENS
from miner.duel.channel.environment import DuelSource
from miner.duel.channel.longest import turn_tokens
from miner.duel.channel.tasks import duel_of, evaluation_duels
from miner.environments.base import Message
from miner.environments.findings import Findings
from miner.rollout.model_folder import load_chat

GAMES_TRIED = 4
"""Of each game, to find its longest turn."""

OWN_WORDS = (
    "prompts are in our own words, and the tournament shows others: copy its files with "
    "python -m miner prompts --from CLONE (docs/duels.md)"
)
"""Warning without a copy of the tournament's sentences."""


def look_at(model: Path, games: Sequence[str], source: DuelSource) -> Findings:
    """Look at the model in a folder. Raises: `ConfigurationError` if it cannot be talked to."""
    renderer = load_chat(model).renderer
    tasks = evaluation_duels(2 * GAMES_TRIED * len(games), 1, games, ["random"])
    tokens = turn_tokens(tasks, source.wording, renderer)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    chat: list[Message] = [{"role": "user", "content": "Your move?"}]
    tool = {"type": "function", "function": {"name": "probing", "parameters": {}}}
    longest = {duel_of(task)[0].name: tokens[task.environment] for task in tasks}
    table = Table("game", "longest prompt", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for game, count in longest.items():
        table.add_row(game, f"{count:,} tokens")
    forfeits = warning_of(
        "probing" in renderer.render(chat, [tool]), longest, config.get("max_position_embeddings")
    )
    own_words = OWN_WORDS if source.wording.is_own else ""
    return Findings(
        channel=DUEL_CHANNEL,
        reason=f"calls are read as {source.family}, prompts are in {source.wording.described}",
        warning="; ".join(filter(None, (own_words, forfeits))),
        repeated=forfeits,
        picture=table,
        details={"family": source.family, "tokens": longest},
    )


def warning_of(shows_tools: bool, tokens: Mapping[str, int], context: int | None) -> str:
    """Warnings of forfeits; empty for none.

    Args:
        shows_tools: whether the chat template puts the tools into the prompt at all.
        tokens: of each game's longest prompt, notes as full as can be.
        context: tokens that the model can attend to; None where its configuration has no limit.
    """
    found = []
    if not shows_tools:
        found.append("the chat template shows no tools: the model has to know calls without them")
    too_long = [game for game, n in tokens.items() if context and n + DUEL_REPLY_TOKENS > context]
    if too_long:
        games = ", ".join(too_long)
        found.append(f"a context of {context:,} tokens forfeits long turns of {games}")
    return "; ".join(found)
