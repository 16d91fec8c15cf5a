"""Parts of a duel, by game: own turns, tokens of a turn's prompt and of a move's call, and
what a teacher's decision takes.

`python -m benchmarks.duel_turns [--games 40] [--tokenizer FOLDER]` plays the training stream's
duels with a teacher on one seat and random moves on the other, and counts with Qwen2.5's
vocabulary and template, or those of a folder. Taught are a warm start's tokens that trees compute
for a decision, in a step of as many decisions of a game as six games have of 128, with named
replies, in passes of 8,192; and the processor seconds of its teacher. Its table is where the
numbers of `entrypoint.workload` come from.
"""

import argparse
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import mean

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.recorded_steps import duel_source
from benchmarks.tokens import passes_of
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.calls import write_calls
from miner.duel.memory import Notes, WordCounter
from miner.duel.table import Table
from miner.duel.teachers import Seen, best, taught_values
from miner.duel.tools import move_call, shaped
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.games import GAMES
from miner.learning.forest import Row
from miner.learning.packing import tokens_in_line
from miner.rollout.renderer import ChatRenderer
from miner.training.demonstrations import WarmStart

DECISIONS = 22
PASS_TOKENS = 8192


@dataclass
class Counted:
    """One seat's turns: tokens of each prompt, those that the prompt before it has not, and the
    call's."""

    prompts: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)


def counted(game: str, seed: int, renderer: ChatRenderer) -> Counted:
    """A game of the teacher, whose turns these are, against random moves."""
    table, rng, notes = Table(GAMES[game], seed), Random(seed), Notes(WordCounter())
    found = Counted()
    before: tuple[int, ...] = ()
    while not table.state.is_terminal() and (legal := table.state.legal_actions()):
        move = rng.choice(legal)
        if table.state.current_player() == seed % 2:
            request = Request(table, seed % 2, notes, own_wording(), legal=legal)
            chat = renderer.render(request.messages, shaped(request.tools))
            ids = renderer.encode(chat)
            found.prompts.append(len(ids))
            held = 0
            while held < min(len(before), len(ids)) and before[held] == ids[held]:
                held += 1
            found.fresh.append(len(ids) - held)
            found.calls.append(len(renderer.encode(write_calls("hermes", [move_call(move)]))))
            before = ids
            move = best(taught_values(game, Seen.of(request)))
        table.apply(move)
    return found


def taught(game: str, renderer: ChatRenderer) -> tuple[float, float]:
    """Computed tokens and seconds of a teacher's decision, what is solved once left out."""
    overrides = ["environment.channel=duel", f"environment.games=['{game}']", "reward.tau=0.015"]
    overrides += ["reward.named=true", "environment.notes=0.5"]  # as jobs of real bases
    overrides += ["demonstrations.share=0.4", f"demonstrations.rows={DECISIONS}"]
    settings = Settings.load(None, overrides, environ={})
    warm = WarmStart(settings, Ranks(), renderer, duel_source())
    rows = warm.rows(0)
    began = time.thread_time()
    decisions = warm._demonstrations(1)
    seconds = (time.thread_time() - began) / len(decisions)
    learned = {
        number: Row(
            np.array([*row.prompt_ids, *row.completion_ids]),
            np.arange(len(row.completion_ids)) + len(row.prompt_ids),
        )
        for number, row in enumerate(rows)
    }
    computed = sum(map(tokens_in_line, passes_of(learned, PASS_TOKENS, trees=True)))
    return computed / len({row.prompt_ids for row in rows}), seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=40)
    parser.add_argument("--tokenizer", type=Path)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer) if given.tokenizer else _qwen()
    renderer = ChatRenderer(tokenizer)
    print(
        "| game | own turns, mean | most | a prompt, mean | most | new of it | a move's call "
        "| taught | seconds |"
    )
    print("|---" * 9 + "|")
    for game in GAMES:
        games = [counted(game, seed, renderer) for seed in range(given.games)]
        turns = [len(each.prompts) for each in games]
        prompts, fresh, calls = (
            [tokens for each in games for tokens in getattr(each, name)]
            for name in ("prompts", "fresh", "calls")
        )
        cells = f"{mean(turns):.1f} | {max(turns)} | {mean(prompts):,.0f} | {max(prompts):,}"
        tokens, seconds = taught(game, renderer)
        cells += f" | {mean(fresh):,.0f} | {mean(calls):.0f} | {tokens:,.0f} | {seconds:.2f}"
        print(f"| {game} | {cells} |", flush=True)


def _qwen() -> PreTrainedTokenizerBase:
    """From the package that the tests have it of."""
    families = import_module("tests.base_models.families").FAMILIES
    tokenizer: PreTrainedTokenizerBase = families[0].tokenizer()
    return tokenizer


if __name__ == "__main__":
    main()
