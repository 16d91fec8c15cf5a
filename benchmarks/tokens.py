"""Tokens and time that trees save: `python -m benchmarks.tokens [--model FOLDER] [--budget 8192]`.

Steps are `recorded_steps` in Qwen2.5's vocabulary and template, the demo's in its own. Rendered are
the tokens of all prompts, sampled those of all replies; rows are computed one by one, trees
together; one tree of the whole step is the fewest that any budget gives. Lines that are indented
are the games of the step above. `--steps` chooses what is recorded, counted and timed, `--passes`
how many passes of each way are timed: some minutes for one step of a large model.

Times are CPU seconds of forward and backward on one thread, or seconds on a GPU in bfloat16
(`--gpu`): of each way the same number of passes is computed, in turns, and scaled up by their
tokens. Ids beyond a network's vocabulary wrap around.
"""

import argparse
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from trl.trainer.utils import add_fused_lm_head

from benchmarks.recorded_steps import (
    DEMO_REPLIES,
    Step,
    goofspiel,
    recorder,
)
from miner.background_loop import BackgroundLoop
from miner.learning.forest import Row, grow, single
from miner.learning.packing import Pass, few_passes, padded_tokens, tokens_in_line
from miner.learning.tree_forward import let_take_trees, score
from miner.tiny_model.build import Recipe, recipe_tokenizer
from miner.tiny_model.network import NetworkRecipe, build_network

DEMO = "the demo's step: Goofspiel, 8 cards, 32 games alone, all legal replies"
GROUPED = "Goofspiel, 8 cards, the demo's network"
STEPS = ("demo", "cards", "served", "duels", "notes", "own", "code", "openenv")
COLUMNS = (
    "step", "rows", "rendered", "sampled", "by rows", "by trees", "share", "one tree", "time",
    "share",
)  # fmt: skip


def passes_of(rows: Mapping[int, Row], budget: int, *, trees: bool) -> list[Pass]:
    """As the trainer makes them."""
    if trees:
        return few_passes(grow(rows, budget), budget, tokens_in_line)
    return few_passes(single(rows), budget, padded_tokens)


def timed(
    models: Mapping[str, PreTrainedModel], ways: Mapping[str, Sequence[Pass]], most: int
) -> dict[str, float]:
    """Seconds of forward and backward of all passes of each way, from `most` of them each.

    Args:
        models: what computes each way.
    """
    spent, seen = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for turn in range(most):
        for name, passes in ways.items():
            if turn >= len(passes):
                continue
            trees = passes[(2 * turn + 1) * len(passes) // (2 * min(most, len(passes)))]
            spent[name] += seconds_of(models[name], trees)
            seen[name] += tokens_in_line(trees)
    return {
        name: spent[name] * sum(map(tokens_in_line, passes)) / seen[name]
        for name, passes in ways.items()
    }


def seconds_of(model: PreTrainedModel, trees: Pass) -> float:
    """Of `learn`: this process's on a CPU, the second time's on a GPU, which compiles at first."""
    if model.device.type == "cpu":
        began = time.process_time()
        learn(model, trees)
        return time.process_time() - began
    learn(model, trees)
    torch.cuda.synchronize()
    began = time.perf_counter()
    learn(model, trees)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def bfloat16_on_gpu(model: PreTrainedModel) -> torch.autocast:
    """The trainer's arithmetic there; on a CPU float32 stays."""
    return torch.autocast("cuda", torch.bfloat16, enabled=model.device.type == "cuda")


def learn(model: PreTrainedModel, trees: Pass) -> None:
    """Forward and backward."""
    count = sum(len(nodes) for tree in trees for nodes in tree.reads)
    vocabulary = model.config.vocab_size
    folded = [replace(tree, ids=tree.ids % vocabulary) for tree in trees]
    # which tokens they are costs nothing
    targets = torch.arange(count, device=model.device) % vocabulary
    with bfloat16_on_gpu(model):
        score(model, model, folded, targets).logprobs.sum().backward()
    model.zero_grad()


def ready(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Two of it, of which one takes trees; both have computed something."""
    models = {"rows": model, "trees": copy.deepcopy(model)}
    for way, each in models.items():
        each.train()
        add_fused_lm_head(each, temperature=1.0, outputs=("log_probs", "entropy"))
        with bfloat16_on_gpu(each):
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


def main() -> None:
    """Record, count, compute, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="SmolLM2; one of its shape without")
    parser.add_argument(
        "--layers", type=int, default=30, help="of one that is made: 30 has SmolLM2"
    )
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a pass")
    parser.add_argument("--passes", type=int, default=3, help="that are timed; 0: counts alone")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP",
                        help=f"of {', '.join(STEPS)}")  # fmt: skip
    parser.add_argument("--gpu", action="store_true", help="time all but the demo's step on one")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with BackgroundLoop() as loop:
        own = recipe_tokenizer(Recipe())
        demo = []
        if "demo" in given.steps:
            demo = [goofspiel(own, loop, DEMO_REPLIES, DEMO), goofspiel(own, loop, name=GROUPED)]
        qwen = import_module("tests.base_models.families").FAMILIES[0].tokenizer()
        play = recorder(qwen, loop)
        recorded = [played() for name, played in play.items() if name in given.steps]
    small = ready(build_network(own, NetworkRecipe(), 0))
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for step in demo:
        show(step, small, given.budget, given.passes and 1000)
    device = "cuda" if given.gpu else "cpu"
    timing = given.passes and recorded
    large = ready(smollm2(given.model, given.layers).to(device)) if timing else {}
    for step in recorded:
        show(step, large, given.budget, given.passes)


def counts(rows: Mapping[int, Row], budget: int) -> list[str]:
    """Cells: tokens by rows, by trees of that budget, their share, the share of one tree."""
    by_rows = sum(len(row.path) for row in rows.values())
    by_trees, one = (
        sum(map(tokens_in_line, passes_of(rows, most, trees=True))) for most in (budget, by_rows)
    )
    return [f"{by_rows:,}", f"{by_trees:,}", f"{by_trees / by_rows:.2f}", f"{one / by_rows:.2f}"]


def show(step: Step, models: Mapping[str, PreTrainedModel], budget: int, most: int) -> None:
    """Print a line, and one for each of several games."""
    cells = [step.name, *(f"{n:,}" for n in (len(step.rows), step.rendered, step.sampled))]
    cells += counts(step.rows, budget)
    if most:
        ways = {way: passes_of(step.rows, budget, trees=way == "trees") for way in models}
        seconds = timed(models, ways, most)
        cells += [f"{seconds['rows']:,.1f} s", f"{seconds['trees'] / seconds['rows']:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    games = step.by_environment()
    for game, rows in games.items() if len(games) > 1 else ():
        cells = [f"- {game}", f"{len(rows):,}", "", "", *counts(rows, budget)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
