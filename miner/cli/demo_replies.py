"""Replies as evidence of learning: before and after it, side by side."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from miner.environments.base import Message
from miner.environments.builtin import BuiltinSource
from miner.evaluation.grader import episode_list
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.real_model import dtype_here
from miner.rollout.model_folder import load_model_folder

GAMES = 3
REPLY_TOKENS = 16


def print_replies(base: Path, trained: Path, console: Console) -> None:
    """Show what both models answer to the first turn of some of the grader's games."""
    chats = asyncio.run(_first_turns())
    table = Table(title="The first turns of the grader's first games", title_justify="left")
    table.add_column("shown")
    columns = [
        asyncio.run(_replies(folder, chats, temperature))
        for folder in (base, trained)
        for temperature in (0.0, 1.0)
    ]
    for name in ("before", "after"):
        table.add_column(f"{name}, greedy")
        table.add_column(f"{name}, sampled")
    for chat, *replies in zip(chats, *columns, strict=True):
        card = next(line for line in chat[-1]["content"].splitlines() if "point card" in line)
        table.add_row(card, *(Text(repr(reply)) for reply in replies))
    console.print(table)


async def _first_turns() -> list[list[Message]]:
    source = BuiltinSource()
    tasks = episode_list(GAMES, sizes=(8,))
    try:
        return [list((await source.open().reset(task)).messages) for task in tasks]
    finally:
        await source.close()


async def _replies(
    folder: Path, chats: Sequence[Sequence[Message]], temperature: float
) -> list[str]:
    loaded = load_model_folder(folder, getattr(torch, dtype_here()))
    renderer, params = loaded.chat.renderer, SamplingParams(REPLY_TOKENS, temperature)
    with TransformersSampler(loaded.model, loaded.chat.tokenizer) as sampler:
        prompts = [renderer.encode(renderer.render(chat)) for chat in chats]
        samples = await asyncio.gather(*(sampler.sample(ids, params) for ids in prompts))
    return [renderer.reply_text(sample) for sample in samples]
