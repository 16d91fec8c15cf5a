r"""Problems of your own for the code agent: count a letter in a word.

    python -m miner probe environment.channel=code_agent \
        environment.code_agent.entry=examples/code_problems.py:Letters
    python -m miner train environment.channel=code_agent \
        environment.code_agent.entry=examples/code_problems.py:Letters \
        rollout.max_reply_tokens=256 model.path=MODEL output.dir=OUT run_dir=runs/letters
"""

from __future__ import annotations

import random
import re

from miner.environments.code_agent import CodeProblems

TASK = (
    "How often is the letter {letter} in {word}? You may write Python between <code> and </code>; "
    "you are shown what it prints. Then answer with the number."
)


class Letters(CodeProblems):
    """Words of twelve random letters: without `problems`, numbers are seeds without end."""

    def question(self, number: int) -> str:
        word, letter = parts(number)
        return TASK.format(word=word, letter=letter)

    def grade(self, number: int, reply: str) -> float:
        word, letter = parts(number)
        found = re.findall(r"\d{1,9}", reply)
        return float(bool(found) and int(found[-1]) == word.count(letter))


def parts(number: int) -> tuple[str, str]:
    """The word, and a letter that it has."""
    rng = random.Random(number)
    word = "".join(rng.choices("aehirst", k=12))
    return word, rng.choice(word)
