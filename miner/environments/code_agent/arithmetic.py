"""Arithmetic in words: easy with a line of code, hard to guess.

Invariants:
* training and held-out problems are split by their pair of operands: no operation on a held-out
  pair is ever trained on, in either order;
* the split is the same for every seed, so that runs can be compared.
"""

import operator
import random
import re
from collections.abc import Callable
from functools import cache

from miner.environments.base import EpisodeTask
from miner.environments.code_agent.problems import Problem
from miner.environments.split import split

OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "plus": ("+", operator.add),
    "minus": ("-", operator.sub),
    "times": ("*", operator.mul),
}
"""By word: how it is written in code, and what it does."""
OPERANDS = range(2, 32)

_NUMBER = re.compile(r"-?\d+")


class Arithmetic:
    """`Problems` of two operands and a word for what to do with them."""

    name = "arithmetic"

    def problem(self, task_id: int) -> Problem:
        left, word, right = parts(task_id)
        answer = OPERATIONS[word][1](left, right)
        return Problem(f"{left} {word} {right} ?", lambda reply: grade(reply, answer))

    def training(self, index: int, seed: int) -> EpisodeTask:
        rng = random.Random(f"{self.name}/{seed}/{index}")
        pair = rng.choice(pairs(held_out=False))
        return self._task(rng.choice(_problems_of(pair)), rng)

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        every = [number for pair in pairs(held_out=True) for number in _problems_of(pair)]
        rng = random.Random(f"{self.name}/held-out/{base_seed}")
        return [self._task(number, rng) for number in rng.sample(every, min(count, len(every)))]

    def _task(self, task_id: int, rng: random.Random) -> EpisodeTask:
        return EpisodeTask(self.name, task_id, rng.randrange(2**31), opponent="none")


def parts(task_id: int) -> tuple[int, str, int]:
    """Left operand, word and right operand of a problem."""
    rest, left = divmod(task_id, len(OPERANDS))
    word, right = divmod(rest, len(OPERANDS))
    return OPERANDS[left], list(OPERATIONS)[word], OPERANDS[right]


def number_of(left: int, word: str, right: int) -> int:
    """The inverse of `parts`."""
    word_and_right = list(OPERATIONS).index(word) * len(OPERANDS) + OPERANDS.index(right)
    return word_and_right * len(OPERANDS) + OPERANDS.index(left)


@cache
def pairs(*, held_out: bool) -> tuple[tuple[int, int], ...]:
    """Unordered pairs of operands, the lower one first, of one side of the split."""
    every = ((low, high) for low in OPERANDS for high in OPERANDS if low <= high)
    kept, trained = split(every)
    return tuple(kept if held_out else trained)


def grade(reply: str, answer: int) -> float:
    """1 exactly if the reply has numbers and the last of them is the answer."""
    numbers = _NUMBER.findall(reply)
    return float(bool(numbers) and int(numbers[-1][:12]) == answer)


def _problems_of(pair: tuple[int, int]) -> list[int]:
    orders = dict.fromkeys((pair, pair[::-1]))
    return [number_of(left, word, right) for left, right in orders for word in OPERATIONS]
