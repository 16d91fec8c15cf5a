"""Distance of the policy from the targets that it learns."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from miner.learning.packing import Pass

Target = tuple[float | None, float | None]
"""Weight and entropy of a row, as in `RolloutRow`."""


def target_distance(
    passes: Sequence[tuple[Pass, Tensor]],
    targets: Sequence[Target],
    reduce: Callable[[Tensor], Tensor],
) -> float | None:
    """Kullback-Leibler divergence in nats, a mean over the weights of all processes; collective.

    Args:
        passes: trees that this process learned together, and their rows' log-probabilities.
        targets: of the rows of all processes, by their numbers in the trees.
        reduce: sum over the processes.

    Returns: None where no row has a target.
    """
    given = [weight if weight and entropy is not None else 0.0 for weight, entropy in targets]
    if not any(given):
        return None
    weights = torch.tensor(given, device=passes[0][1].device)
    nll = [
        -(weights[[row for tree in trees for row in tree.rows]] * logprobs.sum(1)).sum()
        for trees, logprobs in passes
    ]
    entropy = sum(entropy or 0.0 for _, entropy in targets)
    return (float(reduce(torch.stack(nll).sum())) - entropy) / sum(given)
