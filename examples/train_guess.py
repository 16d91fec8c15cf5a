"""A model learns an environment of one's own: `python examples/train_guess.py`, some minutes.

The model is a tiny one that is made here. It knows what "higher" and "lower" mean and guesses any
number that is left; that the middle one tells most is for it to find out. Everything else is
`python -m miner train` with examples/guess.py.
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


def dialogue(rng: random.Random) -> list[Piece]:
    """A game of someone who guesses at random among what is left."""
    _, user, assistant = ROLES
    pieces: list[Piece] = [(f"{user}guess{EOS}{assistant}", False)]
    number, low, high = rng.randint(1, 7), 1, 7
    while True:
        guess = rng.randint(low, high)
        pieces.append((f"{guess}{EOS}", True))
        if guess == number:
            return pieces
        low, high = (guess + 1, high) if guess < number else (low, guess - 1)
        told = "higher" if guess < number else "lower"
        pieces.append((f"{user}{told}{EOS}{assistant}", False))


def main() -> None:
    """Make the base if there is none, train, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base-steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/guess"))
    arguments = parser.parse_args()
    base, run = arguments.out / "base", arguments.out / "run"
    if not (base / "config.json").is_file():
        tokenizer = agent_tokenizer(0, 7, words=("guess", "higher", "lower"))
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
            "rollout.group_size=16",
            f"optimizer.learning_rate={arguments.rate}",
            f"optimizer.max_steps={arguments.steps}",
            "optimizer.decay_share=0.5",
            "evaluation.every_steps=10",
            "evaluation.episodes=200",
        ]
    )
    report_command(run)


if __name__ == "__main__":
    main()
