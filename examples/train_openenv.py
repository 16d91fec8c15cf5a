"""A model learns on a real OpenEnv server: `python examples/train_openenv.py`, under a minute.

`make setup-openenv` comes first: the server runs in .venv-openenv, the trainer does not. The model
is a tiny one that is made here and knows the form only: for Echo a few words, for tic_tac_toe any
number. Everything else is `python -m miner train` with examples/openenv/echo.py or open_spiel.py.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.cli.report import report_command
from miner.cli.train import train_command
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.form import FormRecipe, Piece, build_form_base
from miner.tiny_model.tokenizer import EOS, ROLES

SERVERS = Path(__file__).parent / "openenv"
WORDS = ("well", "hello", "there", "sing", "along", "with", "us", "now")
ASKED = "Say something."
BOARD = "...\n...\n...\nLegal actions: 0, 1, 2, 3, 4, 5, 6, 7, 8"


def echo_dialogue(rng: random.Random) -> list[Piece]:
    """One to seven words, mostly few."""
    _, user, assistant = ROLES
    count = min(rng.randint(1, 7), rng.randint(1, 7))
    said = " ".join(rng.choice(WORDS) for _ in range(count))
    return [(f"{user}{ASKED}{EOS}{assistant}", False), (f"{said}{EOS}", True)]


def board_dialogue(rng: random.Random) -> list[Piece]:
    """Numbers that have nothing to do with the board."""
    _, user, assistant = ROLES
    free = list(range(9))
    cells = ["."] * 9
    pieces: list[Piece] = []
    while len(free) > 1:
        rows = "\n".join("".join(cells[row : row + 3]) for row in (0, 3, 6))
        shown = f"{rows}\nLegal actions: {', '.join(map(str, free))}"
        pieces.append((f"{user}{shown}{EOS}{assistant}", False))
        pieces.append((f"{rng.choice(free)}{EOS}", True))
        for mark in "xo":
            cells[free.pop(rng.randrange(len(free)))] = mark
    return pieces


@dataclass(frozen=True)
class Example:
    """A server, the base that is to learn on it, and its settings."""

    app: str
    words: tuple[str, ...]
    dialogue: Callable[[random.Random], list[Piece]]
    base_steps: int
    settings: tuple[str, ...]


EXAMPLES = {
    "echo": Example(
        "echo.py",
        (ASKED, *WORDS, *(f" {word}" for word in WORDS)),
        echo_dialogue,
        60,
        (
            "environment.openenv.max_turns=1",
            "rollout.groups_per_step=8",
            "rollout.max_reply_tokens=24",
            "optimizer.max_steps=15",
            "optimizer.learning_rate=2e-3",
            "evaluation.every_steps=5",
            "evaluation.episodes=50",
        ),
    ),
    "tic_tac_toe": Example(
        "open_spiel.py",
        (BOARD,),
        board_dialogue,
        300,
        (
            "environment.openenv.max_turns=9",
            "environment.openenv.show=board",
            "environment.openenv.return_range=[-1, 1]",
            "rollout.groups_per_step=16",
            "rollout.max_reply_tokens=4",
            "reward.invalid_reply_penalty=0.3",
            "optimizer.max_steps=60",
            "optimizer.learning_rate=8e-4",
            "evaluation.every_steps=20",
            "evaluation.episodes=200",
        ),
    ),
}


def build_base(example: Example, out: Path) -> Path:
    """Make the base model if there is none."""
    if not (out / "config.json").is_file():
        tokenizer = agent_tokenizer(0, 9, words=example.words)
        recipe = FormRecipe(steps=example.base_steps)
        build_form_base(out, tokenizer, example.dialogue, recipe=recipe)
    return out


def main() -> None:
    """Make the base if there is none, train, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", choices=sorted(EXAMPLES), default="echo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments, overrides = parser.parse_known_args()
    example = EXAMPLES[arguments.environment]
    out = arguments.out or Path("runs") / arguments.environment
    run = out / f"run-{arguments.seed}"
    train_command(
        [
            "environment.channel=openenv",
            f"environment.openenv.app={SERVERS / example.app}",
            f"model.path={build_base(example, out / 'base')}",
            f"output.dir={out / f'model-{arguments.seed}'}",
            f"run_dir={run}",
            f"seed={arguments.seed}",
            "threads=1",
            *example.settings,
            *overrides,
        ]
    )
    report_command(run)


if __name__ == "__main__":
    main()
