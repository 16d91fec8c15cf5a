"""Warm start: a network learns to follow labelled numbers from the exact answer distributions.

Invariants:
* the same recipe and seed give the same weights on the same machine: bounded by steps, not time;
* only answers are learned: the distribution over the options at each, and the EOS after it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from miner.tiny_model.number_following import Conversation, DataRecipe, draw_conversation
from miner.tiny_model.tokenizer import EOS, ROLES

ProgressCallback = Callable[[int, int, float], None]
"""Called after each step with the step (from 1), the number of steps and the loss: nats from the
model's answers to the rule's, averaged over recent steps."""


@dataclass(frozen=True, slots=True)
class WarmStartRecipe:
    """How the network learns.

    Attributes:
        final_share: share of the learning rate at the end of its cosine.
        eos_weight: weight of the loss on the EOS after an answer.
        listed_weight: weight of the loss on answers that are not listed; it moves no optimum, but
            a per cent of unlisted answers, which costs an episode much, costs the rest little.
        sorted_batches: batches drawn together and sorted by length, to pad little.
    """

    steps: int = 3500
    batch: int = 8
    learning_rate: float = 3e-3
    final_share: float = 0.02
    warmup_steps: int = 50
    eos_weight: float = 0.3
    listed_weight: float = 2.0
    sorted_batches: int = 16


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation as tokens: its ids, the positions before each answer, and the targets.

    Attributes:
        ids: the whole conversation.
        positions: index in `ids` of the token that each answer follows.
        answers: per answer, the token ids of the options and their probabilities.
    """

    ids: tuple[int, ...]
    positions: tuple[int, ...]
    answers: tuple[tuple[tuple[int, ...], tuple[float, ...]], ...]


def warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    data: DataRecipe,
    recipe: WarmStartRecipe,
    seed: int,
    progress: ProgressCallback | None = None,
) -> None:
    """Train `model` in place, in float32 on the CPU."""
    rng = random.Random(seed)
    batches = _batches(rng, tokenizer, data, recipe)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
    )
    average = 0.0
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _rate(step, recipe)
        loss, divergence = batch_loss(model, batch, recipe)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average += (divergence - average) / min(step + 1, 50)
        if progress:
            progress(step + 1, recipe.steps, average)
    model.eval()


def encode_conversation(
    conversation: Conversation, tokenizer: PreTrainedTokenizerBase, rng: random.Random
) -> Example:
    """Tokens of a conversation, equal to those of its rendering by the chat template."""
    system, user, assistant, eos = _token_ids(tokenizer, (*ROLES, EOS))
    first_text_token = max(tokenizer.all_special_ids) + 1
    ids: list[int] = []
    if conversation.noise_tokens:
        noise = (
            rng.randrange(first_text_token, len(tokenizer))
            for _ in range(conversation.noise_tokens)
        )
        ids += [system, *noise, eos]
    elif conversation.system:
        ids += [system, *_encode(tokenizer, conversation.system), eos]
    positions, answers = [], []
    for turn in conversation.turns:
        ids += [user, *_encode(tokenizer, turn.text), eos, assistant]
        positions.append(len(ids) - 1)
        options = _token_ids(tokenizer, [str(option) for option in turn.ids])
        answers.append((tuple(options), turn.probabilities))
        ids += [options[turn.ids.index(turn.answer)], eos]
    return Example(tuple(ids), tuple(positions), tuple(answers))


def batch_loss(
    model: Qwen3ForCausalLM, batch: Sequence[Example], recipe: WarmStartRecipe
) -> tuple[torch.Tensor, float]:
    """Cross entropy to the answers' distributions plus, weighted, two losses on form.

    Returns: the loss as a scalar tensor, and the divergence of the model's answers from the
    distributions in nats: 0 for a model that knows every conversation's rule.
    """
    longest = max(len(example.ids) for example in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
    places = [(row, position) for row, ex in enumerate(batch) for position in ex.positions]
    rows, columns = (torch.tensor(axis) for axis in zip(*places, strict=True))
    wanted = torch.zeros(len(places), model.config.vocab_size)
    answers = [answer for example in batch for answer in example.answers]
    for index, (options, probabilities) in enumerate(answers):
        wanted[index, list(options)] = torch.tensor(probabilities)
    # What fills the rows stands on the right, where causal attention does not look.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    log_probabilities = model.lm_head(hidden[rows, columns]).log_softmax(-1)
    after = model.lm_head(hidden[rows, columns + 1]).log_softmax(-1)
    answer_loss = -(wanted * log_probabilities).sum(-1).mean()
    listed = log_probabilities.masked_fill(wanted == 0, -math.inf)
    listed_loss = -listed.logsumexp(-1).mean()
    eos_loss = -after[:, model.config.eos_token_id].mean()
    entropy = -torch.special.xlogy(wanted, wanted).sum(-1).mean()
    loss = answer_loss + recipe.listed_weight * listed_loss + recipe.eos_weight * eos_loss
    return loss, float(answer_loss.detach() - entropy)


def _batches(
    rng: random.Random,
    tokenizer: PreTrainedTokenizerBase,
    data: DataRecipe,
    recipe: WarmStartRecipe,
) -> Iterator[list[Example]]:
    """As many batches as steps; each holds conversations of like length, to pad little."""
    count = recipe.batch * recipe.sorted_batches
    for first in range(0, recipe.steps, recipe.sorted_batches):
        examples = [
            encode_conversation(draw_conversation(rng, data, first / recipe.steps), tokenizer, rng)
            for _ in range(count)
        ]
        examples.sort(key=lambda example: len(example.ids))
        batches = [examples[i : i + recipe.batch] for i in range(0, count, recipe.batch)]
        rng.shuffle(batches)
        yield from batches[: recipe.steps - first]


def _token_ids(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> list[int]:
    return cast(list[int], tokenizer.convert_tokens_to_ids(list(tokens)))


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _rate(step: int, recipe: WarmStartRecipe) -> float:
    """Share of the learning rate: linear warm-up, then a cosine down to `final_share`."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    share = recipe.final_share + (1 - recipe.final_share) * cosine
    return min(1.0, (step + 1) / recipe.warmup_steps) * share
