"""Warm start: a network learns to follow labelled numbers from the exact answer distributions.

Invariants:
* the same recipe and seed give the same weights on the same machine: how long it takes is decided
  by steps and by measurements on fresh conversations, never by time;
* only answers are learned: the distribution over the options at each, and the EOS after it.
"""

import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from miner.inference.transformers.last_layer import last_layer_at
from miner.tiny_model.curriculum import Curriculum, CurriculumRecipe
from miner.tiny_model.examples import Encoder, Example, collate
from miner.tiny_model.number_following import DataRecipe, Lesson, draw_conversation
from miner.tiny_model.rules import Rule

_log = logging.getLogger(__name__)

ProgressCallback = Callable[[int, int, float], None]
"""Called after each step with the step (from 1), the number of steps as planned now, and the loss:
nats from the model's answers to the rule's, averaged over recent steps."""


@dataclass(frozen=True, slots=True)
class WarmStartRecipe(CurriculumRecipe):
    """Optimisation of the network, and its length.

    Attributes:
        eos_weight: weight of the loss on the EOS after an answer.
        listed_weight: weight of the loss on answers that are not listed; it moves no optimum, but
            a per cent of unlisted answers, which costs an episode much, costs the rest little.
        sorted_batches: batches drawn together and sorted by length, to pad little.
        measured: conversations of one measurement of the look-up.
    """

    batch: int = 8
    learning_rate: float = 3e-3
    eos_weight: float = 0.3
    listed_weight: float = 2.0
    sorted_batches: int = 10
    measured: int = 48


def warm_start(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    data: DataRecipe,
    recipe: WarmStartRecipe,
    seed: int,
    progress: ProgressCallback | None = None,
) -> None:
    """Train `model` in place, in float32 on the CPU."""
    encoder, curriculum = Encoder(tokenizer), Curriculum(recipe)
    exam = random.Random(f"{seed}/exam")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    average = 0.0
    model.train()
    for step, batch in enumerate(_batches(random.Random(seed), encoder, data, recipe, curriculum)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * curriculum.rate(step)
        loss, divergence = batch_loss(model, batch, recipe)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if curriculum.to_measure(step + 1):
            accuracy = lookup_accuracy(model, encoder, data, exam, recipe.measured)
            curriculum.measured(step + 1, accuracy)
            if accuracy < recipe.lookup_accuracy and not curriculum.lesson(step + 1).lookup:
                _log.warning("the mixture begins with %.0f%% of look-ups right", 100 * accuracy)
        average += (divergence - average) / min(step + 1, 50)
        if progress:
            progress(step + 1, curriculum.steps, average)
    model.eval()


def batch_loss(
    model: Qwen3ForCausalLM, examples: Sequence[Example], recipe: WarmStartRecipe
) -> tuple[torch.Tensor, float]:
    """Cross entropy to the answers' distributions plus, weighted, two losses on form.

    Returns: the loss as a scalar tensor, and the divergence of the model's answers from the
    distributions in nats: 0 for a model that knows every conversation's rule.
    """
    batch = collate(examples, model.config.vocab_size)
    # the answers, and EOS after them
    row, column = batch.row.repeat(2), torch.cat((batch.column, batch.column + 1))
    logits = _logits_at(model, batch.ids, row, column)
    log_probabilities, log_probabilities_after = logits.log_softmax(-1).chunk(2)
    wanted = batch.wanted
    answer_loss = -(wanted * log_probabilities).sum(-1).mean()
    listed = log_probabilities.masked_fill(wanted == 0, -math.inf)
    listed_loss = -listed.logsumexp(-1).mean()
    eos_loss = -log_probabilities_after[:, model.config.eos_token_id].mean()
    entropy = -torch.special.xlogy(wanted, wanted).sum(-1).mean()
    loss = answer_loss + recipe.listed_weight * listed_loss + recipe.eos_weight * eos_loss
    return loss, float(answer_loss.detach() - entropy)


def _logits_at(
    model: Qwen3ForCausalLM, ids: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """Logits at the tokens (row[i], column[i]), shape (tokens, vocabulary): one token in twenty.

    The last layer, half of a network of two, is computed for these only.
    """
    with last_layer_at(model, row, column):
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits: torch.Tensor = model.lm_head(states[row, column])
    return logits


@torch.no_grad()
def lookup_accuracy(
    model: Qwen3ForCausalLM,
    encoder: Encoder,
    data: DataRecipe,
    rng: random.Random,
    conversations: int,
) -> float:
    """Share of greedy answers that are right, in fresh conversations that all follow the nearest.

    Their sheets have all kinds of lines, so the labelled number has to be looked up among many;
    what an answer is worth to any rule but this one is not measured.
    """
    nearest = replace(data, rules=((Rule.NEAREST, 1.0),), sharpness=(8.0,), full=1.0, follow_pair=0)
    lesson = Lesson(small=True)
    drawn = [draw_conversation(rng, nearest, lesson) for _ in range(conversations)]
    batch = collate(encoder.encode(drawn, rng), model.config.vocab_size)
    logits = _logits_at(model, batch.ids, batch.row, batch.column)
    chosen = logits.argmax(-1, keepdim=True)
    best = batch.wanted.max(-1, keepdim=True).values  # two options are as near at times
    return float((batch.wanted.gather(-1, chosen) > 0.99 * best).float().mean())


def _batches(
    rng: random.Random,
    encoder: Encoder,
    data: DataRecipe,
    recipe: WarmStartRecipe,
    curriculum: Curriculum,
) -> Iterator[list[Example]]:
    """As many batches as steps; each holds conversations of like length, to pad little."""
    count, step = recipe.batch * recipe.sorted_batches, 0
    while step < curriculum.steps:
        lesson = curriculum.lesson(step)
        drawn = [draw_conversation(rng, data, lesson) for _ in range(count)]
        examples = sorted(encoder.encode(drawn, rng), key=lambda example: len(example.ids))
        batches = [examples[i : i + recipe.batch] for i in range(0, count, recipe.batch)]
        rng.shuffle(batches)
        for batch in batches[: curriculum.steps - step]:
            yield batch
            step += 1
