"""The base model of the code agent's demonstration, from nothing, within a minute or so.

What it learns is form: copy two numbers into a program, copy its output into the answer. Half of
its replies are guesses, and the operator it writes has nothing to do with the question; that is
what training is to find out. Only training's pairs of operands are seen, and outputs are any number
at all: a model that saw true ones would not know how to copy those of the held-out pairs.

Invariant: the same recipe and seed give the same weights on the same machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from miner.environments.code_agent.arithmetic import OPERANDS, OPERATIONS, pairs
from miner.environments.code_agent.form import Form, Tags
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.tokenizer import EOS, ROLES

NUMBERS = range(-OPERANDS[-1], OPERANDS[-1] ** 2 + 1)
"""All that an operation on two operands can give, and more."""

IGNORED = -100  # torch's label for a token without loss


@dataclass(frozen=True, slots=True)
class AgentRecipe:
    """All that decides the weights, but the seed.

    Attributes:
        code_share: share of first replies that are programs.
        steps: optimizer steps of `batch` dialogues each.
    """

    code_share: float = 0.5
    steps: int = 500
    batch: int = 64
    learning_rate: float = 3e-3
    network: NetworkRecipe = field(default_factory=NetworkRecipe)


def build_agent_base(
    out: Path,
    *,
    recipe: AgentRecipe | None = None,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Path:
    """Make the base model and put it at `out`."""
    recipe = recipe or AgentRecipe()
    tokenizer = agent_tokenizer(NUMBERS.start, NUMBERS.stop - 1)
    model = build_network(tokenizer, recipe.network, seed)
    _learn(model, tokenizer, recipe, random.Random(seed), progress)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def dialogue(rng: random.Random, recipe: AgentRecipe) -> list[tuple[str, bool]]:
    """A dialogue as pieces of text and whether the policy wrote them."""
    tags = Tags()
    _, user, assistant = ROLES
    left, right = rng.sample(rng.choice(pairs(held_out=False)), 2)
    pieces = [(f"{user}{left} {rng.choice(list(OPERATIONS))} {right} ?{EOS}{assistant}", False)]
    sign, _ = rng.choice(list(OPERATIONS.values()))
    number = str(rng.choice(NUMBERS))
    if rng.random() < recipe.code_share:
        pieces.append((f"{tags.code_start}print({left}{f' {sign} '}{right}){tags.code_end}", True))
        output = tags.output(number)
        if rng.choice(list(Form)) is Form.MESSAGE:
            output = f"{EOS}{user}{output}{EOS}{assistant}"
        pieces.append((output, False))
    return [*pieces, (f"{number}{EOS}", True)]


def _learn(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    recipe: AgentRecipe,
    rng: random.Random,
    progress: Callable[[int, float], None],
) -> None:
    """Cross entropy on what the policy wrote."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.05
    )
    model.train()
    for step in range(recipe.steps):
        rows = [_encoded(tokenizer, dialogue(rng, recipe)) for _ in range(recipe.batch)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        for row, (tokens, own) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            labels[row, : len(own)] = torch.tensor(own)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, float(loss.detach()))
    model.eval()


def _encoded(
    tokenizer: PreTrainedTokenizerBase, pieces: list[tuple[str, bool]]
) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    for text, own in pieces:
        new = list(tokenizer.encode(text, add_special_tokens=False))
        ids += new
        labels += new if own else [IGNORED] * len(new)
    return ids, labels
