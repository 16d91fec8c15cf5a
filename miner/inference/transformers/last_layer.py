"""Less work in the last layer, whose output is read at a few tokens only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor


@contextmanager
def last_layer_at(model: Any, row: Tensor, column: Tensor) -> Iterator[None]:
    """Within it, `model` computes its last layer's queries, output projection and feed-forward
    network at the tokens (row[i], column[i]) of a batch only, and leaves them zero elsewhere.

    The model's outputs at these tokens, and its gradient, are the same: other tokens need no more
    of that layer than keys and values. A model of which `trims_last_layer` is false runs unchanged.

    Args:
        model: a transformers model with a `base_model`.
        row, column: integers, both of shape (tokens,); no token twice, or it would count twice in
            backward.
    """

    def at_tokens(whole: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        computed = whole(hidden[row, column])
        # autocast may give another dtype than it gets
        out = computed.new_zeros((*hidden.shape[:-1], computed.shape[-1]))
        out[row, column] = computed
        return out

    parts = _parts(model) if trims_last_layer(model) else []
    for part in parts:
        part.forward = partial(at_tokens, part.forward)
    try:
        yield
    finally:
        for part in parts:
            del part.forward  # the class's own shows again


def trims_last_layer(model: Any) -> bool:
    """Return whether `last_layer_at` saves anything.

    It does not where the feed-forward network is no plain one (such as a mixture of experts), or
    activations are computed again in the backward pass, which comes later.
    """
    again = model.training and getattr(model, "is_gradient_checkpointing", False)
    return bool(_parts(model)) and not again


def _parts(model: Any) -> list[Any]:
    """The modules of the last layer whose output is needed at tokens that are read alone."""
    layers = getattr(model.base_model, "layers", None)
    network = getattr(layers[-1], "mlp", None) if layers else None
    if not layers or not hasattr(network, "down_proj"):
        return []
    attention = getattr(layers[-1], "self_attn", None)
    projections = [getattr(attention, name, None) for name in ("q_proj", "o_proj")]
    return [network, *projections] if all(projections) else [network]
