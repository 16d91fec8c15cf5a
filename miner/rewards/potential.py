"""Shaping by potential: what a turn changed in the chance to win, telescoping over the episode.

F_t = phi(s_{t+1}) - phi(s_t) with phi = 0 after the end (Ng, Harada & Russell 1999): the sum over
an episode is -phi(s_0), equal for all members of a group, so the best policy does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, sqrt

from miner.environments.games.goofspiel import GoofspielState, parse_state

Potential = Callable[[str, int], float]
"""(what the policy was shown at a turn, its seat) -> chance to win in [0, 1]."""


def chance_to_win(shown: str, seat: int) -> float:
    """Chance to win a Goofspiel game if both sides played at random from here on.

    A normal approximation over the points still to be won: each remaining prize k goes to either
    side by the odds of two cards drawn from the hands. Nothing of any strategy is in it.
    """
    state: GoofspielState = parse_state(shown)
    mine, theirs = state.hands[seat], state.hands[1 - seat]
    pairs = len(mine) * len(theirs)
    ahead = sum(a > b for a in mine for b in theirs) / pairs
    behind = sum(a < b for a in mine for b in theirs) / pairs
    prizes = [state.prize, *state.remaining]
    drift = (ahead - behind) * sum(prizes)
    variance = (ahead + behind - (ahead - behind) ** 2) * sum(k * k for k in prizes)
    lead = state.points[seat] - state.points[1 - seat] + drift
    if variance <= 0:
        return 0.5 + 0.5 * ((lead > 0) - (lead < 0))
    return 0.5 * (1.0 + erf(lead / sqrt(2.0 * variance)))


def shaped_rewards(rewards: Sequence[float], potentials: Sequence[float]) -> list[float]:
    """Rewards by turn plus the change of potential each turn brought.

    Args:
        rewards: reward of each turn (shape: turns).
        potentials: phi of the state in which each turn was played (shape: turns).
    """
    after = [*potentials[1:], 0.0]
    return [r + b - a for r, a, b in zip(rewards, potentials, after, strict=True)]
