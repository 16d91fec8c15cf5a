"""Where the time of the base model goes: `python -m benchmarks.warm_start [--threads N]`.

Parts of a step of the warm start's last lesson, as milliseconds of CPU time and side by side in one
process: making data, forward and backward over all positions, the same at the answers only.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from miner.tiny_model.build import base_recipe_for, recipe_tokenizer
from miner.tiny_model.examples import Encoder, Example, collate
from miner.tiny_model.network import build_network
from miner.tiny_model.number_following import draw_conversation
from miner.tiny_model.states import states_at


def milliseconds(work: Callable[[Sequence[Example]], object], steps: list[list[Example]]) -> float:
    """CPU time of a step, all threads together."""
    work(steps[0])
    began = time.process_time()
    for examples in steps:
        work(examples)
    return 1000 * (time.process_time() - began) / len(steps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe, rng = base_recipe_for((8,)), random.Random(0)
    tokenizer = recipe_tokenizer(recipe)
    encoder, model = Encoder(tokenizer), build_network(tokenizer, recipe.network, seed=0)
    size = recipe.warm_start.batch

    def made(_: object = None) -> list[Example]:
        drawn = [draw_conversation(rng, recipe.data) for _ in range(size)]
        return encoder.encode(drawn, rng)

    def whole(examples: Sequence[Example]) -> None:
        batch = collate(examples, model.config.vocab_size)
        states = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        states[torch.arange(size)[:, None], batch.positions].sum().backward()

    def answers(examples: Sequence[Example]) -> None:
        batch = collate(examples, model.config.vocab_size)
        states_at(model, batch.ids, batch.positions).sum().backward()

    steps = [made() for _ in range(arguments.steps)]
    tokens = sum(len(example.ids) for examples in steps for example in examples) / len(steps)
    table = Table("part of a step", "CPU ms")
    table.title = f"{size} chats, {tokens:.0f} tokens, {arguments.threads} thread(s)"
    for name, work in (("data", made), ("all positions", whole), ("answers only", answers)):
        table.add_row(name, f"{milliseconds(work, steps):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
