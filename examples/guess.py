r"""An environment of one's own: guess a number in as few tries as bisection needs.

    python -m miner probe environment.channel=own environment.entry=examples/guess.py:Guess
    python -m miner train environment.channel=own environment.entry=examples/guess.py:Guess \
        model.path=MODEL output.dir=OUT run_dir=runs/own

`python examples/train_guess.py` does so with a tiny model that is made on the spot.
"""

from __future__ import annotations

import random
import re

from miner.environments.own import Step, TextEnvironment


class Guess(TextEnvironment):
    """A number from 1 to 7, and three tries."""

    max_turns = 3
    replies = ("4", "2", "6", "1", "7")

    def reset(self, seed: int) -> str:
        self.number = random.Random(seed).randint(1, 7)
        return "guess"

    def step(self, reply: str) -> Step:
        found = re.search(r"\d{1,3}", reply)
        if found is None:
            return Step("number?", valid=False)
        guess = int(found[0])
        if guess == self.number:
            return Step(score=1.0)
        return Step("higher" if guess < self.number else "lower")
