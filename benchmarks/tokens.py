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
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import mean

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
    DEMO_REPLIES,
    GROUP,
    ScriptedSampler,
    Step,
    call,
    duel_source,
    duels,
    goofspiel,
    record,
    recorder,
)
from miner.background_loop import BackgroundLoop
from miner.inference.transformers.sampler import TransformersSampler
from miner.learning.forest import Row, grow, nearly_within, single
from miner.learning.packing import Pass, few_passes, padded_tokens, tokens_in_line
from miner.learning.tree_forward import let_take_trees, score
from miner.tiny_model.build import Recipe, recipe_tokenizer
from miner.tiny_model.network import NetworkRecipe, build_network

WIN_RATE = 0.9
DEMO = "the demo's step: Goofspiel, 8 cards, 32 games alone, all legal replies"
GROUPED = "Goofspiel, 8 cards, the demo's network"
STEPS = ("prefill", "flat", "demo", "cards", "served", "duels", "notes", "own", "code", "openenv")
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


@dataclass(frozen=True)
class Flat:
    """Means over draws of which games are won, of shares of those of a step in which none is left
    out: groups with one reward, rows left out, tokens computed, time."""

    groups: float
    rows: float
    tokens: float
    time: float = math.nan


def with_advantage(step: Step, seed: int) -> tuple[float, dict[int, Row]]:
    """Share of groups whose members all have one reward, and the rows that are learned from."""
    rng = Random(seed)
    won = [[rng.random() < WIN_RATE for _ in range(step.group)] for _ in step.environments]
    flat = [len(set(group)) == 1 for group in won]
    needed = {n: row for n, row in step.rows.items() if not flat[step.episodes[n] // step.group]}
    return sum(flat) / len(flat), needed | nearly_within(needed, step.rows)


def flat_share(step: Step, budget: int, model: PreTrainedModel | None, draws: int) -> Flat:
    """Share that learning computes where games are won so often, and with a `model` its time."""
    drawn = [with_advantage(step, seed) for seed in range(draws)]
    ways = {"all": passes_of(step.rows, budget, trees=True)} | {
        str(seed): passes_of(left, budget, trees=True) for seed, (_, left) in enumerate(drawn)
    }
    tokens = {name: sum(map(tokens_in_line, passes)) for name, passes in ways.items()}
    counted = Flat(
        mean(flat for flat, _ in drawn),
        mean(1 - len(left) / len(step.rows) for _, left in drawn),
        (sum(tokens.values()) / tokens["all"] - 1) / draws,
    )
    if model is None:
        return counted
    computed = {name: passes for name, passes in ways.items() if passes}
    seconds = timed(dict.fromkeys(computed, model), computed, 1000)
    return replace(counted, time=(sum(seconds.values()) / seconds["all"] - 1) / draws)


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
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP",
                        help=f"of {', '.join(STEPS)}")  # fmt: skip
    parser.add_argument("--gpu", action="store_true", help="time all but the demo's step on one")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with BackgroundLoop() as loop:
        own = recipe_tokenizer(Recipe())
        wanted = {"demo", "flat"} & set(given.steps)
        grouped = goofspiel(own, loop, name=GROUPED) if wanted else None
        demo = goofspiel(own, loop, DEMO_REPLIES, DEMO) if "demo" in given.steps else None
        qwen = import_module("tests.base_models.families").FAMILIES[0].tokenizer()
        play = recorder(qwen, loop)
        recorded = [played() for name, played in play.items() if name in given.steps]
        if "prefill" in given.steps:
            share = prefilled_share(qwen, loop)
            print(f"prefill of 64 duels: {share:.2f} of the tokens", flush=True)
    small = ready(build_network(own, NetworkRecipe(), 0))
    if grouped and "flat" in given.steps:
        print(in_words(flat_share(grouped, given.budget, None, 1000)), "(1,000 draws)", flush=True)
        if given.passes:
            drawn = flat_share(grouped, given.budget, small["trees"], 8)
            print(in_words(drawn), "(8 draws)", flush=True)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for step in (demo, grouped) if demo and grouped else ():
        show(step, small, given.budget, given.passes and 1000)
    device = "cuda" if given.gpu else "cpu"
    timing = given.passes and recorded
    large = ready(smollm2(given.model, given.layers).to(device)) if timing else {}
    for step in recorded:
        show(step, large, given.budget, given.passes)


def in_words(flat: Flat) -> str:
    """In words."""
    shares = f"{flat.groups:.2f} of groups flat, {flat.rows:.2f} of rows left out"
    time = "" if math.isnan(flat.time) else f", {flat.time:.2f} of time"
    return f"games won at {WIN_RATE}: {shares}, {flat.tokens:.2f} of tokens{time}"


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
