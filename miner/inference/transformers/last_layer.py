"""Less work in the last layer, whose output is read at a few tokens only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def last_feed_forward_at(model: Any, row: Tensor, column: Tensor) -> Iterator[None]:
    """Within it, `model` computes its last feed-forward network at the tokens (row[i], column[i])
    of a batch only, and leaves its output zero elsewhere.

    The model's outputs at these tokens, and its gradient, are the same: nothing comes after that
    network but the head. A model without a plain one (such as a mixture of experts) runs unchanged,
    and so does one that computes its activations again in the backward pass, which comes later.

    Args:
        model: a transformers model with a `base_model`.
        row, column: integers, both of shape (tokens,); no token twice, or it would count twice in
            backward.
    """
    again = model.training and getattr(model, "is_gradient_checkpointing", False)
    network = _last_feed_forward(model)
    if network is None or again:
        yield
        return
    whole = network.forward

    def at_tokens(hidden: Tensor) -> Tensor:
        computed: Tensor = whole(hidden[row, column])
        out = computed.new_zeros(hidden.shape)  # autocast may give another dtype than it gets
        out[row, column] = computed
        return out

    network.forward = at_tokens
    try:
        yield
    finally:
        del network.forward  # the class's own shows again


def _last_feed_forward(model: Any) -> Any:
    layers = getattr(model.base_model, "layers", None)
    network = getattr(layers[-1], "mlp", None) if layers else None
    return network if hasattr(network, "down_proj") else None
