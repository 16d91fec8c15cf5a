"""A tiny base model that knows the form of dialogues only, from nothing, within a minute or so.

Invariant: the same dialogues, recipe and seed give the same weights on the same machine.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from miner.tiny_model.network import NetworkRecipe, build_network

IGNORED = -100  # torch's label for a token without loss

Piece = tuple[str, bool]
"""A part of a dialogue, chat markers included, and whether the policy wrote it."""


@dataclass(frozen=True, slots=True)
class FormRecipe:
    """All that decides the weights, but dialogues.

    Attributes:
        steps: optimizer steps of `batch` dialogues each.
    """

    steps: int = 500
    batch: int = 64
    learning_rate: float = 3e-3
    network: NetworkRecipe = field(default_factory=NetworkRecipe)


def build_form_base(
    out: Path,
    tokenizer: PreTrainedTokenizerBase,
    dialogue: Callable[[random.Random], list[Piece]],
    *,
    recipe: FormRecipe | None = None,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Path:
    """Make a base model of what `dialogue` draws and put it at `out`."""
    recipe = recipe or FormRecipe()
    model = build_network(tokenizer, recipe.network, seed=0)
    _learn(model, tokenizer, dialogue, recipe, random.Random(0), progress)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _learn(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    dialogue: Callable[[random.Random], list[Piece]],
    recipe: FormRecipe,
    rng: random.Random,
    progress: Callable[[int, float], None],
) -> None:
    """Cross entropy on what the policy wrote."""

    def loss() -> Tensor:
        rows = [_encoded(tokenizer, dialogue(rng)) for _ in range(recipe.batch)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        for row, (tokens, own) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(own)] = torch.tensor(own)
        found: Tensor = model(input_ids=ids, labels=labels).loss
        return found

    descend(model, loss, steps=recipe.steps, learning_rate=recipe.learning_rate, progress=progress)


def descend(
    model: Qwen3ForCausalLM,
    loss: Callable[[], Tensor],
    *,
    steps: int,
    learning_rate: float,
    progress: Callable[[int, float], None],
) -> None:
    """Steps of AdamW, each on a new value of `loss`; the rate rises for a twentieth, then falls."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.05
    )
    model.train()
    for step in range(steps):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, float(value.detach()))
    model.eval()


def _encoded(
    tokenizer: PreTrainedTokenizerBase, pieces: list[Piece]
) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    for text, own in pieces:
        new = list(tokenizer.encode(text, add_special_tokens=False))
        ids += new
        labels += new if own else [IGNORED] * len(new)
    return ids, labels
