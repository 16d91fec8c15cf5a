"""Several weighted rewards, a tool that is called in a reply, and two environments in one run.

python -m miner probe environment.channel=own environment.entry=examples/several.py:Both
"""

import random
import re

from guess import Guess

from miner.environments.own import Step, TextEnvironment

WEIGHTS = {"right": 0.8, "brief": 0.2}


class Sums(TextEnvironment):
    """A sum, and a calculator that answers `<calc>12+30</calc>`."""

    max_turns = 3
    replies = ("42", "<calc>12+30</calc>", "about 42, I would say")

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.terms = rng.randint(10, 99), rng.randint(10, 99)
        return f"What is {self.terms[0]} + {self.terms[1]}? <calc>1+1</calc> calculates."

    def step(self, reply: str) -> Step:
        if call := re.search(r"<calc>(\d{1,4})\+(\d{1,4})</calc>", reply):
            return Step(f"<result>{int(call[1]) + int(call[2])}</result>")
        number = re.search(r"\d{1,5}", reply)
        if number is None:
            return Step("a number?", valid=False)
        rewards = {"right": int(number[0]) == sum(self.terms), "brief": len(reply) < 8}
        return Step(score=sum(WEIGHTS[name] * value for name, value in rewards.items()))


class Both(TextEnvironment):
    """Two episodes of sums for each of guessing; the seed decides which."""

    kinds = (Sums, Sums, Guess)
    max_turns = max(kind.max_turns for kind in kinds)
    replies = (*Sums.replies, *Guess.replies)

    def reset(self, seed: int) -> str:
        self.now = self.kinds[seed % len(self.kinds)]()
        return self.now.reset(seed)

    def step(self, reply: str) -> Step:
        return self.now.step(reply)
