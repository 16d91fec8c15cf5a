"""Tokens and time that trees save: `python -m benchmarks.tokens [--model FOLDER] [--budget 8192]`.

Steps are `recorded_steps` in Qwen2.5's vocabulary and template, the demo's in its own. Rendered are
the tokens of all prompts, sampled those of all replies; rows are computed one by one, trees
together. Times are CPU seconds of forward and backward on one thread: of each way the same number
of passes is computed, in turns, and scaled up by their tokens. Ids beyond a network's vocabulary
wrap around.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head

from benchmarks.recorded_steps import (
    GROUP,
    ScriptedSampler,
    Step,
    call,
    duel_source,
    duels,
    goofspiel,
    record,
    steps,
)
from miner.background_loop import BackgroundLoop
from miner.inference.transformers.sampler import TransformersSampler
from miner.learning.forest import Row, grow, nearly_within, single
from miner.learning.packing import Pass, few_passes, padded_tokens, tokens_in_line
from miner.learning.tree_forward import let_take_trees, score
from miner.tiny_model.build import Recipe, recipe_tokenizer
from miner.tiny_model.network import NetworkRecipe, build_network

WIN_RATE = 0.9


def passes_of(rows: Mapping[int, Row], budget: int, *, trees: bool) -> list[Pass]:
    """As the trainer makes them."""
    if trees:
        return few_passes(grow(rows, budget), budget, tokens_in_line)
    return few_passes(single(rows), budget, padded_tokens)


def timed(
    models: Mapping[str, PreTrainedModel], ways: Mapping[str, Sequence[Pass]], most: int
) -> dict[str, float]:
    """CPU seconds of forward and backward of all passes of each way, from `most` of them each.

    Args:
        models: what computes each way.
    """
    spent, seen = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for turn in range(most):
        for name, passes in ways.items():
            if turn >= len(passes):
                continue
            trees = passes[(2 * turn + 1) * len(passes) // (2 * min(most, len(passes)))]
            began = time.process_time()
            learn(models[name], trees)
            spent[name] += time.process_time() - began
            seen[name] += tokens_in_line(trees)
    return {
        name: spent[name] * sum(map(tokens_in_line, passes)) / seen[name]
        for name, passes in ways.items()
    }


def learn(model: PreTrainedModel, trees: Pass) -> None:
    """Forward and backward."""
    count = sum(len(nodes) for tree in trees for nodes in tree.reads)
    vocabulary = model.config.vocab_size
    folded = [replace(tree, ids=tree.ids % vocabulary) for tree in trees]
    targets = torch.arange(count) % vocabulary  # which tokens they are costs nothing
    score(model, model, folded, targets).logprobs.sum().backward()
    model.zero_grad()


def ready(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Two of it, of which one takes trees; both have computed something."""
    models = {"rows": model, "trees": copy.deepcopy(model)}
    for way, each in models.items():
        each.train()
        add_fused_lm_head(each, temperature=1.0, outputs=("log_probs", "entropy"))
        if way == "trees" and (obstacle := let_take_trees(each)):
            raise SystemExit(f"the model takes no trees: {obstacle}")
        learn(each, single({0: Row(np.arange(9), np.array([8]))}))
    return models


def smollm2(folder: Path | None, layers: int) -> PreTrainedModel:
    """The model in a folder, or a random one of SmolLM2-135M's shape with so many layers."""
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(shape)


def flat_share(step: Step, model: PreTrainedModel, budget: int) -> tuple[float, float]:
    """Share of rows left out where games are won so often, and of the time that learning takes."""
    rng, rows = Random(0), step.rows
    won = [rng.random() < WIN_RATE for _ in range(max(step.episodes) + 1)]
    flat = {n // GROUP for n in range(len(won))} - {
        n // GROUP for n, score in enumerate(won) if score != won[n // GROUP * GROUP]
    }
    needed = {n: row for n, row in rows.items() if step.episodes[n] // GROUP not in flat}
    left = needed | nearly_within(needed, rows)
    ways = {
        "all": passes_of(rows, budget, trees=True),
        "needed": passes_of(left, budget, trees=True),
    }
    seconds = timed(dict.fromkeys(ways, model), ways, 1000)
    return 1 - len(left) / len(rows), seconds["needed"] / seconds["all"]


def prefilled_share(tokenizer: PreTrainedTokenizerBase, loop: BackgroundLoop) -> float:
    """Of 64 duels' prompts: tokens that the transformers sampler computes, padding included."""
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    model = Qwen3ForCausalLM(shape)
    computed: list[int] = []
    with TransformersSampler(model, tokenizer) as engine:
        sampler = ScriptedSampler(tokenizer, call, engine)
        model.register_forward_pre_hook(
            lambda module, args, given: computed.append(given["input_ids"].numel()),
            with_kwargs=True,
        )
        tasks = [*duels()[::3], *duels()[1:5:3]]  # a deal of each game, and two more
        assert len(tasks) * GROUP == 64
        record("", duel_source(), tasks, sampler, loop)
    return sum(computed) / sampler.rendered


def main() -> None:
    """Record, count, compute, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="SmolLM2; one of its shape without")
    parser.add_argument(
        "--layers", type=int, default=30, help="of one that is made: 30 has SmolLM2"
    )
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a pass")
    parser.add_argument("--passes", type=int, default=3, help="that are timed; 0: counts alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with BackgroundLoop() as loop:
        own = recipe_tokenizer(Recipe())
        demo = goofspiel(own, loop)
        qwen = import_module("tests.base_models.families").FAMILIES[0].tokenizer()
        recorded = list(steps(qwen, loop))
        print(f"prefill of 64 duels: {prefilled_share(qwen, loop):.2f} of the tokens", flush=True)
    columns = (
        "step",
        "rows",
        "rendered",
        "sampled",
        "by rows",
        "by trees",
        "share",
        "time",
        "share",
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    small = ready(build_network(own, NetworkRecipe(), 0))
    show(replace(demo, name=f"{demo.name}, the demo's network"), small, given.budget, 1000)
    if given.passes:
        out, time_share = flat_share(demo, small["trees"], given.budget)
        print(f"games won at {WIN_RATE}: {out:.2f} of rows left out, {time_share:.2f} of the time")
    large = ready(smollm2(given.model, given.layers)) if given.passes else {}
    for step in recorded:
        show(step, large, given.budget, given.passes)


def show(step: Step, models: Mapping[str, PreTrainedModel], budget: int, most: int) -> None:
    """Print a line."""
    ways = {way: passes_of(step.rows, budget, trees=way == "trees") for way in ("rows", "trees")}
    by_trees = sum(map(tokens_in_line, ways["trees"]))
    cells = [step.name, *(f"{n:,}" for n in (len(step.rows), step.rendered, step.sampled))]
    cells += [f"{step.tokens:,}", f"{by_trees:,}", f"{by_trees / step.tokens:.2f}"]
    if most:
        seconds = timed(models, ways, most)
        cells += [f"{seconds['rows']:,.0f} s", f"{seconds['trees'] / seconds['rows']:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
