"""How often the search for a temperature decides wrongly, at known shares of forfeited games.

`python -m benchmarks.temperature_rule` simulates the rule of `miner.training.temperature` and
prints the tables of docs/base_models.md: single decisions beside those of the earlier rule, and
whole searches. No model is asked; games are drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from miner.training.temperature import (
    LADDER,
    MOST_EPISODES,
    SequentialTest,
    fit_temperature,
    round_size,
)

LIMIT = 0.25
KINDS = 24  # duels of six games against two opponents on two seats
SHARES = (0.02, 0.1, 0.15, 1 / 6, 0.2, 0.25, 0.3, 1 / 3, 0.4, 0.5, 0.8)
TURNS = 8  # of a game under the earlier rule, which counted replies of four games


def decision(
    test: SequentialTest, shares: np.ndarray, rng: np.random.Generator
) -> tuple[bool, int]:
    """Whether games of kinds with these shares fit, and the games that it took."""
    size = round_size(len(shares))
    episodes = forfeited = 0
    while episodes < MOST_EPISODES:
        forfeited += int((rng.random((size // len(shares), len(shares))) < shares).sum())
        episodes += size
        if (fits := test.fits(episodes, forfeited)) is not None:
            return fits, episodes
    return forfeited <= test.limit * episodes, episodes


def by_replies(share: float, rng: np.random.Generator) -> bool:
    """The earlier rule: the share of invalid replies in four games that end at the first one."""
    invalid = 1.0 - (1.0 - share) ** (1.0 / TURNS)
    replies = bad = 0
    for _ in range(4):
        first = int(rng.geometric(invalid)) if invalid else TURNS + 1
        replies += min(first, TURNS)
        bad += first <= TURNS
    return bad <= LIMIT * replies


def unequal(share: float) -> np.ndarray:
    """Shares of this mean, of which half of the kinds have as much as can be."""
    most = min(1.0, 2 * share)
    return np.repeat([most, 2 * share - most], KINDS // 2)


def decisions(runs: int) -> None:
    """Print how often each share is called low enough."""
    test, rng = SequentialTest(LIMIT), np.random.default_rng(0)
    print(f"at most {LIMIT:.0%}; undecided zone {test.low:.3f} to {test.high:.3f}; {runs:,} runs")
    print("| forfeited | low enough | kinds differ | games, mean | 95% | earlier rule |")
    print("|---|---|---|---|---|---|")
    for share in SHARES:
        alike = [decision(test, np.full(KINDS, share), rng) for _ in range(runs)]
        differing = [decision(test, unequal(share), rng)[0] for _ in range(runs)]
        games = [played for _, played in alike]
        cells = (
            f"{np.mean([fits for fits, _ in alike]):.1%}",
            f"{np.mean(differing):.1%}",
            f"{np.mean(games):.0f}",
            f"{np.quantile(games, 0.95):.0f}",
            f"{np.mean([by_replies(share, rng) for _ in range(runs)]):.1%}",
        )
        print(f"| {share:.3f} |", " | ".join(cells), "|")


def searches(runs: int) -> None:
    """Print what whole searches find where bases forfeit these shares along the ladder."""
    test, rng = SequentialTest(LIMIT), np.random.default_rng(1)
    print("| share at 1, 0.85, ... 0.3 | too high | a rung too low | games, mean |")
    print("|---|---|---|---|")
    for shares in (
        (0.9, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05),
        (0.5, 0.4, 0.3, 0.22, 0.15, 0.1, 0.05),
        (0.15, 0.1, 0.05, 0.02, 0.01, 0.01, 0.01),
        (0.99, 0.98, 0.95, 0.9, 0.7, 0.4, 0.1),
    ):
        found = [search(shares, rng) for _ in range(runs)]
        certain = next(i for i, share in enumerate(shares) if share <= test.low)
        too_high = np.mean([shares[rung] >= test.high for rung, _ in found])
        too_low = np.mean([rung > certain for rung, _ in found])
        listed = ", ".join(f"{share:g}" for share in shares)
        games = np.mean([played for _, played in found])
        print(f"| {listed} | {too_high:.1%} | {too_low:.1%} | {games:.0f} |")


def search(shares: tuple[float, ...], rng: np.random.Generator) -> tuple[int, int]:
    """The rung that a search ends at, and the games that it took."""
    share_at: dict[float, float] = dict(zip(LADDER, shares, strict=True))

    def play(temperature: float, _: int) -> tuple[int, int]:
        return KINDS, int(rng.binomial(KINDS, share_at[temperature]))

    fitted = fit_temperature(1.0, LIMIT, play)
    return LADDER.index(fitted.temperature), sum(each.episodes for each in fitted.tried)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    runs: int = parser.parse_args().runs
    tables: tuple[Callable[[int], None], ...] = (decisions, searches)
    for table in tables:
        table(runs)
        print()


if __name__ == "__main__":
    main()
