"""Means of bounded scores with intervals that stay honest at the edges.

Scores are in [0, 1] and a good policy wins nearly always: at a mean of 0.95 the t interval and the
bootstrap are too narrow, and after ten wins out of ten both claim certainty. So:

* a mean gets the **Wilson score interval** (Wilson 1927) with the mean score instead of the
  proportion. It is exact in spirit for wins and losses; any score in [0, 1] with mean p has at
  most the variance p(1 - p), so draws only make it wider than needed. It never leaves [0, 1] and
  never has width zero;
* two policies on the *same* episodes get the **adjusted paired interval** of Agresti and Min
  (2005): half a pseudo-observation in each cell of the two-by-two table, that is one pair of
  differences 0, and half a pair each of +1 and -1. Shared luck cancels, and identical results do
  not prove equality.

Games that come in deals, as a duel's two with swapped seats, are not drawn alone: between players
whose moves chance does not decide, the second is a copy of the first. A mean counts for as many
games as its **design effect** leaves (Kish 1965), a difference is of the means of deals.

Likelihoods of recorded replies are no wins and losses: they differ from each other, and from those
of another model, far less than these bounds allow for, and the rare loss that a t interval misses
is not among them. They and their differences get the **t interval** (Student 1908).

Intervals are two-sided with 95% confidence.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Group = TypeVar("Group", int, str, tuple[str, str])

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean (or mean difference) over `n` episodes with the bounds of its 95% interval."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def signed(self) -> str:
        """As a difference is written: every number with its sign."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def mean_score(
    scores: Sequence[float], deals: Sequence[Hashable] = (), *, likelihoods: bool = False
) -> Estimate:
    """Mean of `scores` (each in [0, 1], at least one) with its Wilson interval.

    Args:
        deals: each score's, equal for those that were drawn together; empty: all were drawn alone.
        likelihoods: they are likelihoods, for a t interval.
    """
    if likelihoods:
        return t_interval(scores, 0.0)
    mean, z = fsum(scores) / len(scores), _Z
    n = len(scores) / _design_effect(scores, deals or range(len(scores)), mean)
    shrink = 1 + z * z / n
    centre = (mean + z * z / (2 * n)) / shrink
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / shrink
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Estimate(mean, min(mean, low), max(mean, high), len(scores))


def grouped(scores: Iterable[tuple[Group, float, Hashable]]) -> dict[Group, Estimate]:
    """`mean_score` of each group of (key, score, deal), in ascending order of keys."""
    groups: dict[Group, list[tuple[float, Hashable]]] = {}
    for key, score, deal in scores:
        groups.setdefault(key, []).append((score, deal))
    return {key: mean_score(*zip(*groups[key], strict=True)) for key in sorted(groups)}


def paired_difference(
    first: Mapping[Key, float],
    second: Mapping[Key, float],
    deal: Callable[[Key], Hashable] = lambda key: key,
    *,
    likelihoods: bool = False,
) -> Estimate:
    """Mean of `first[k] - second[k]` over the episodes, at least one, that both policies played.

    Args:
        deal: of an episode; equal for those that were drawn together.
        likelihoods: scores are likelihoods, for a t interval.
    """
    shared = first.keys() & second.keys()
    deals: dict[Hashable, list[float]] = {}
    for key in shared:
        deals.setdefault(deal(key), []).append(first[key] - second[key])
    differences = [*map(fmean, deals.values())]
    if likelihoods:
        return t_interval(differences, -1.0)
    weight = len(differences) + 2
    centre = fsum(differences) / weight
    square = (fsum(d * d for d in differences) + 1) / weight
    half = _Z * sqrt(max(0.0, square - centre * centre) / weight)
    mean = fsum(first[key] - second[key] for key in shared) / len(shared)
    return Estimate(mean, max(-1.0, centre - half), min(1.0, centre + half), len(shared))


def _design_effect(scores: Sequence[float], deals: Sequence[Hashable], mean: float) -> float:
    """Variance of a mean as a multiple of that of scores drawn alone, 1 at least.

    Two deals are added, one won and one lost throughout: few deals, or many that were all won, do
    not show how far the games of one agree.
    """
    apart: dict[Hashable, list[float]] = {}
    for deal, score in zip(deals, scores, strict=True):
        apart.setdefault(deal, []).append(score - mean)
    most = max(map(len, apart.values()))
    added = most * (mean**2 + (1 - mean) ** 2)
    alone = fsum(one**2 for each in apart.values() for one in each) + added
    together = fsum(fsum(each) ** 2 for each in apart.values()) + most * added
    return max(1.0, together / alone)


def t_interval(values: Sequence[float], least: float) -> Estimate:
    """Mean of numbers from `least` to 1 with its t interval; a single one shows no spread."""
    from scipy.special import stdtrit  # only runs on recorded conversations need it

    n, mean = len(values), fsum(values) / len(values)
    if n == 1:
        return Estimate(mean, least, 1.0, n)
    half = float(stdtrit(n - 1, 0.975)) * stdev(values) / sqrt(n)
    return Estimate(mean, max(least, mean - half), min(1.0, mean + half), n)
