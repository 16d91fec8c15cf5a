"""Choice of the published model: the latest shown better than the base, and beaten by none.

The rule, for scores of the same episodes played by every model:
1. Against the base: the candidate's mean must be higher, by a one-sided paired randomisation test
   (the signs of the per-episode differences are exchangeable if the candidate is no better) at
   level 0.1. Pairing removes what the episodes have in common: prizes and opponent.
2. Against the highest score so far: the candidate must not be shown lower, by the same test. The
   later model has learned on, at a lower rate, which greedy play on a few hundred episodes may not
   show; an early lead of a game or two is luck as often as not. The highest score stays the
   measure for every later model, so that many small steps down do not add up.

The level is a trade: a candidate that is really worse by d passes with a probability below 0.1 that
falls fast with d, while a strict level would throw away most small gains over a strong base. The
level is each look's: over ten looks at 300 games a model as good as the base passes in 0.40 to 0.42
of the runs, one worse by 0.02 in 0.12 to 0.20, by 0.05 in 0.01 to 0.05 (base 0.5 to 0.9, 4,000
simulated runs each, looks independent given the base's games, a program that is not kept). The
score that chose a model is biased upwards by the choice: report one from other episodes.

Source: R. A. Fisher, The Design of Experiments (1935), chapter 3; for this use, E. Yeh, "More
accurate tests for the statistical significance of result differences" (COLING 2000).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass
from scipy import stats

LEVEL = 0.1
RESAMPLES = 9999
NAMES = ("base", "best", "highest")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One model's scores on the run's fixed list of held-out episodes.

    Attributes:
        step: optimiser step; 0 is the base model.
        scores: per episode in the order of the list, in [0, 1]; None for an episode that was lost
            to infrastructure, which is left out of comparisons and never counted as 0.
        forfeited: episodes that an invalid reply ended; empty where unused.
    """

    step: int
    scores: tuple[Annotated[float, Field(ge=0, le=1)] | None, ...]
    forfeited: tuple[bool, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over the episodes that were played; NaN if none was."""
        played = [score for score in self.scores if score is not None]
        return math.fsum(played) / len(played) if played else math.nan


class BestModel:
    """Keeps the scores of three models; JSON-serialisable, so a run can resume.

    `replaced_by` changes nothing; `accept` is called once the candidate is really published.

    Attributes:
        base: the base model.
        best: the published one.
        highest: the one with the highest score of those that were published.
    """

    def __init__(
        self, base: Evaluated, best: Evaluated | None = None, highest: Evaluated | None = None
    ) -> None:
        self.base = base
        self.best = best or base
        self.highest = highest or self.best

    def replaced_by(self, candidate: Evaluated, deals: Sequence[Hashable] = ()) -> bool:
        """Apply the rule of the module's docstring; where half of the base's episodes are missing,
        nothing is shown.

        Args:
            deals: of each episode; equal ones, such as both seats of a duel, count as one. Empty:
                all differ.

        Raises: `ValueError` if it was not evaluated on the same list of episodes.
        """
        if len(candidate.scores) != len(self.base.scores):
            raise ValueError(
                f"step {candidate.step} has {len(candidate.scores)} scores, the base has"
                f" {len(self.base.scores)}: evaluate both on the same list of episodes"
            )
        played = len(_paired(candidate, self.base)[0])
        own, base = _paired(candidate, self.base, deals)
        if not own or 2 * played < len(self.base.scores) or paired_p_value(own, base) > LEVEL:
            return False
        own, highest = _paired(candidate, self.highest, deals)
        return paired_p_value(highest, own) > LEVEL

    def accept(self, candidate: Evaluated) -> None:
        """Make `candidate` the published one."""
        self.best = candidate
        own, highest = _paired(candidate, self.highest)
        if math.fsum(own) >= math.fsum(highest):
            self.highest = candidate

    def state(self) -> dict[str, Any]:
        """All that is needed to resume, as JSON-serialisable values."""
        return {name: asdict(getattr(self, name)) for name in NAMES}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BestModel:
        """The inverse of `state`. Raises: `KeyError`, `TypeError`, `ValueError` if damaged."""
        return cls(*(Evaluated(**state[name]) for name in NAMES))


def paired_p_value(better: Sequence[float], worse: Sequence[float]) -> float:
    """One-sided p-value of "the first is better on average"; exact for few pairs, repeatable."""
    pairs = [(a, b) for a, b in zip(better, worse, strict=True) if a != b]
    if not pairs:  # equal pairs do not change under a swap, so they carry no evidence
        return 1.0
    if len(pairs) == 1:  # scipy wants two; an equal pair changes nothing
        pairs.append((0.0, 0.0))
    test = stats.permutation_test(
        tuple(np.array(pairs).T),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=RESAMPLES,
        batch=1000,
        vectorized=True,
        rng=0,
    )
    return float(test.pvalue)


def _paired(
    first: Evaluated, second: Evaluated, deals: Sequence[Hashable] = ()
) -> tuple[list[float], list[float]]:
    """Scores of the episodes that both played, added up by deal."""
    sums: dict[Hashable, tuple[float, float]] = {}
    for number, (a, b) in enumerate(zip(first.scores, second.scores, strict=True)):
        if a is not None and b is not None:
            deal = deals[number] if deals else number
            before = sums.get(deal, (0.0, 0.0))
            sums[deal] = before[0] + a, before[1] + b
    return [a for a, _ in sums.values()], [b for _, b in sums.values()]
