"""Tasks of an agent: problems with checkable answers, numbered, split by subject.

Invariant: a problem is a pure function of its number, and what is held out shares nothing with what
is trained on that would let a policy answer from memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from miner.environments.base import TaskStream


@dataclass(frozen=True, slots=True)
class Problem:
    """One question.

    Attributes:
        question: the user's message.
        grade: score in [0, 1] of the policy's last reply, from the end of the last output on.
    """

    question: str
    grade: Callable[[str], float]


class Problems(TaskStream, Protocol):
    """A set of problems, and its split."""

    def problem(self, task_id: int) -> Problem:
        """Problem number `task_id` of a task that the stream gave."""
