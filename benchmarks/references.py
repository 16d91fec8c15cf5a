"""The reference scores that every report shows: `python -m benchmarks.references --exact 8 10`.

Goofspiel against an opponent that bids uniformly at random, prizes in random order, as the
tournament plays it. Two ways:

* `random` and `match` (bid = prize) are simulated; 0.001 is a little more than one standard error
  of 400,000 games.
* The best response is exact, by dynamic programming over what a player can know: the prizes left,
  both hands and the lead. With 8 cards that takes seconds, with 10 it takes over 5 GB and many
  minutes, with 12 more than a workstation has: what reports show for these is an estimate.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from miner.evaluation.references import BEST_RESPONSE, MATCH, RANDOM

SIZES = (8, 10, 12, 14, 16)
Hands = NDArray[np.bool_]
Values = NDArray[np.float32]


def simulate(name: str, cards: int, games: int, rng: np.random.Generator) -> float:
    """Mean score of `random` or `match` over `games` games with `cards` cards each."""
    prizes = rng.permuted(np.tile(np.arange(1, cards + 1), (games, 1)), axis=1)
    theirs = rng.permuted(np.tile(np.arange(1, cards + 1), (games, 1)), axis=1)
    # The card of the prize's value is still there: it is bid for no other prize.
    ours = rng.permuted(theirs, axis=1) if name == "random" else prizes
    lead = (prizes * np.sign(ours - theirs)).sum(1)
    return float(((np.sign(lead) + 1) / 2).mean())


def best_response(cards: int) -> float:
    """Expected score of the best policy against the random opponent, exactly (float32 sums)."""
    return float(_Solved(cards).value())


class _Solved:
    """Values of all positions with as many prizes left as cards, from the last round backwards.

    `values[R]` is of shape (own hands, opponent's hands, leads): the expected score before the
    next prize of set R is drawn. Leads go from -L to L, L the smaller of what is left to win and
    what has been dealt: beyond the former the game is decided, beyond the latter it cannot be.
    """

    def __init__(self, cards: int) -> None:
        self._cards = range(1, cards + 1)
        self._total = sum(self._cards)

    def value(self) -> np.float32:
        """The first position's value."""
        values: dict[tuple[int, ...], Values] = {(): np.full((1, 1, 1), 0.5, np.float32)}
        for left in range(1, len(self._cards) + 1):
            hands = list(combinations(self._cards, left))
            fewer = {hand: i for i, hand in enumerate(combinations(self._cards, left - 1))}
            after = np.array([[fewer[h[:i] + h[i + 1 :]] for i in range(left)] for h in hands])
            values = {prizes: self._before(prizes, hands, after, values) for prizes in hands}
        ((first,),) = values[tuple(self._cards)]
        return np.float32(first[len(first) // 2])

    def _bound(self, prizes: tuple[int, ...]) -> int:
        return min(sum(prizes), self._total - sum(prizes))

    def _before(
        self,
        prizes: tuple[int, ...],
        hands: list[tuple[int, ...]],
        after: NDArray[np.int64],
        values: dict[tuple[int, ...], Values],
    ) -> Values:
        """Mean over the next prize of the best own card's mean over the opponent's cards."""
        bound, left = self._bound(prizes), len(prizes)
        held = np.array(hands)
        found = np.zeros((len(hands), len(hands), 2 * bound + 1), np.float32)
        for index, prize in enumerate(prizes):
            later = self._three_ways(prizes[:index] + prizes[index + 1 :], prize, bound, values)
            best = np.zeros_like(found)
            for own in range(left):
                mean = np.zeros_like(found)
                for other in range(left):
                    outcome = np.sign(held[:, own, None] - held[None, :, other]) + 1
                    mean += later[outcome, after[:, own, None], after[None, :, other]]
                np.maximum(best, mean, out=best)
            found += best
        found /= left * left
        return found

    def _three_ways(
        self,
        prizes: tuple[int, ...],
        prize: int,
        bound: int,
        values: dict[tuple[int, ...], Values],
    ) -> Values:
        """Values with `prizes` left after `prize` was lost, tied and won, for leads to `bound`."""
        reach = bound + prize
        known = self._bound(prizes)
        beyond = max(0, reach - known)
        wide = np.pad(values[prizes], ((0, 0), (0, 0), (beyond, 0)), constant_values=0.0)
        wide = np.pad(wide, ((0, 0), (0, 0), (0, beyond)), constant_values=1.0)
        middle = wide.shape[2] // 2
        return np.stack(
            [
                wide[:, :, middle + shift - bound : middle + shift + bound + 1]
                for shift in (-prize, 0, prize)
            ]
        )


def main() -> None:
    """Print both ways beside what the reports show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=400_000)
    parser.add_argument("--exact", type=int, nargs="*", default=[8], metavar="CARDS")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    for reference, name in ((RANDOM, "random"), (MATCH, "match")):
        scores = {cards: simulate(name, cards, given.games, rng) for cards in SIZES}
        for cards, score in scores.items():
            print(f"{cards:2} cards  {name:13} {score:.4f}  shown {reference.by_deck_size[cards]}")
        mean = np.mean(list(scores.values()))
        print(f"all       {name:13} {mean:.4f}  shown {reference.overall}")
    for cards in given.exact:
        shown = BEST_RESPONSE.by_deck_size.get(cards, "nowhere")
        exact = best_response(cards)
        print(f"{cards:2} cards  best response {exact:.5f}  shown {shown}", flush=True)


if __name__ == "__main__":
    main()
