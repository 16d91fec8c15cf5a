"""What a task is worth: changed files and last output, held against those of the gold command.

Source: the benchmark's reward (InterCode, Yang et al. 2023, arXiv:2306.14898, section 3.2) with the
tournament's parts: of the paths that both have changed every one is compared, whatever the change.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SHARE = 0.33
BASE = 0.01

Changes = Mapping[str, str | None]
"""What has changed since the beginning: a path and a digest of what it is now, None for gone."""

_TOKEN = re.compile(r"\b\w\w+\b")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left at the end of a task.

    Attributes:
        changes: of the file system.
        output: of the last command, whole; empty if there was none.
    """

    changes: Changes
    output: str


@dataclass(frozen=True, slots=True)
class Parts:
    """A task's reward and what it is made of, each rounded to two places.

    Attributes:
        file_diff: for changing what the gold command changes and nothing else.
        file_changes: for leaving the same in the paths that both have changed.
        answer_similarity: for the gold command's output.
    """

    file_diff: float
    file_changes: float
    answer_similarity: float

    @property
    def reward(self) -> float:
        """Their sum, from 0.01 to 1."""
        return round(BASE + self.file_diff + self.file_changes + self.answer_similarity, 2)


def graded(policy: Outcome, gold: Outcome) -> Parts:
    """The reward of what the policy has left, by what the gold command leaves."""
    different = gold.changes.keys() ^ policy.changes.keys()
    common = gold.changes.keys() & policy.changes.keys()
    equal = sum(gold.changes[path] == policy.changes[path] for path in common)
    return Parts(
        file_diff=round(SHARE * (1 - math.erf(len(different))), 2),
        file_changes=round(SHARE * equal / len(common), 2) if common else SHARE,
        answer_similarity=round(SHARE * similarity(policy.output, gold.output), 2),
    )


def similarity(one: str, other: str) -> float:
    """Cosine of the two texts' TF-IDF vectors, in [0, 1].

    Words have two letters or more, without case; a word's weight is its count times
    ln(3 / (1 + texts that hold it)) + 1. Texts without any word are alike if they are equal.
    """
    counts = [Counter(_TOKEN.findall(text.lower())) for text in (one, other)]
    if not any(counts):
        return float(one == other)
    rare = math.log(3 / 2) + 1  # in one of the two; a word in both has the weight 1
    shared = counts[0].keys() & counts[1].keys()
    lengths = [
        math.hypot(*(n * (1.0 if word in shared else rare) for word, n in count.items()))
        for count in counts
    ]
    dot = sum(counts[0][word] * counts[1][word] for word in shared)
    return dot / (lengths[0] * lengths[1]) if dot else 0.0
