"""Shaping by potential: what a turn changed in the chance to win, telescoping over the episode.

F_t = phi(s_{t+1}) - phi(s_t) with phi = 0 after the end (Ng, Harada & Russell 1999): the sum over
an episode is -phi(s_0), equal for all members of a group, so the best policy does not change.
"""

from collections.abc import Callable, Sequence

Potential = Callable[[str, int], float]
"""(what the policy was shown at a turn, its seat) -> chance to win in [0, 1]."""


def shaped_rewards(rewards: Sequence[float], potentials: Sequence[float]) -> list[float]:
    """Rewards by turn plus the change of potential each turn brought.

    Args:
        rewards: reward of each turn (shape: turns).
        potentials: phi of the state in which each turn was played (shape: turns).
    """
    after = [*potentials[1:], 0.0]
    return [r + b - a for r, a, b in zip(rewards, potentials, after, strict=True)]
