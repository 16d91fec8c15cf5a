"""A model learns an environment of one's own: `python examples/train_guess.py`, some minutes.

The model is a tiny one that is made here and knows the form only: it answers with any number from
1 to 7, whatever it is told. Everything else is `python -m miner train` with examples/guess.py.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from miner.cli.report import report_command
from miner.cli.train import train_command
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.form import FormRecipe, Piece, build_form_base
from miner.tiny_model.tokenizer import EOS, ROLES

ENTRY = Path(__file__).parent / "guess.py"
TOLD = ("higher", "lower")


def dialogue(rng: random.Random) -> list[Piece]:
    """Numbers that have nothing to do with what was told."""
    _, user, assistant = ROLES
    pieces: list[Piece] = [(f"{user}guess{EOS}{assistant}", False)]
    for _ in range(rng.randint(1, 3)):
        pieces.append((f"{rng.randint(1, 7)}{EOS}", True))
        pieces.append((f"{user}{rng.choice(TOLD)}{EOS}{assistant}", False))
    return pieces


def main() -> None:
    """Make the base if there is none, train, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base-steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/guess"))
    arguments = parser.parse_args()
    base, run = arguments.out / "base", arguments.out / "run"
    if not (base / "config.json").is_file():
        tokenizer = agent_tokenizer(0, 7, words=("guess", *TOLD))
        build_form_base(base, tokenizer, dialogue, recipe=FormRecipe(steps=arguments.base_steps))
    train_command(
        [
            "environment.channel=own",
            f"environment.entry={ENTRY}:Guess",
            f"model.path={base}",
            f"output.dir={arguments.out / 'model'}",
            f"run_dir={run}",
            f"seed={arguments.seed}",
            "threads=1",
            "rollout.max_reply_tokens=4",
            f"rollout.groups_per_step={arguments.groups}",
            f"optimizer.learning_rate={arguments.rate}",
            f"optimizer.max_steps={arguments.steps}",
            "evaluation.every_steps=25",
            "evaluation.episodes=200",
        ]
    )
    report_command(run)


if __name__ == "__main__":
    main()
