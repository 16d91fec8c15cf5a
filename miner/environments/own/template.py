"""The file that `python -m miner new-environment` writes: a whole environment to change."""

TEMPLATE = '''r"""A custom environment.

    python -m miner probe environment.channel=own environment.entry={file}
    python -m miner train environment.channel=own environment.entry={file} \\
        model.path=MODEL output.dir=OUT run_dir=runs/{run}
"""

import random

from miner.environments.own import Step, TextEnvironment


class {name}(TextEnvironment):
    """One episode: what `reset` sets, all in self and all from the seed."""

    max_turns = 3  # replies of an episode at most; then score() decides, which is 0 by default
    replies = ("7", "12")  # replies of a policy, for the check before training

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.left, self.right = rng.randint(1, 9), rng.randint(1, 9)
        return f"What is {{self.left}} + {{self.right}}?"

    def step(self, reply: str) -> Step:
        answer = reply.strip()
        if not answer.isdecimal():
            return Step("Answer with a number.", valid=False)
        if int(answer) == self.left + self.right:
            return Step(score=1.0)
        return Step("That is not it. Try again.")
'''


def environment_file(name: str, file: str) -> str:
    """The text of `file`, which holds the class `name`."""
    return TEMPLATE.format(name=name, file=file, run=name.lower())
