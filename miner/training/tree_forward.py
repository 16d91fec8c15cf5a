"""Forward passes over trees: positions and a mask of ancestors, and the model's own head at the
tokens with loss.

A pass is one rectangle, a tree in each line, padded on the right. Trees without branches are plain
causal attention there, which needs no mask and is faster without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from miner.inference.transformers.forward import attention_obstacle, evaluation_mode
from miner.inference.transformers.last_layer import last_feed_forward_at
from miner.training.forest import Cost, Row, Tree, grow, single


class Scores(NamedTuple):
    """Of tokens with loss, of shape (tokens,), in float32 and nats; and a mixture's balance.

    A reference model's head computes no entropies.
    """

    logprobs: Tensor
    entropies: Tensor | None
    aux_loss: Tensor | None


def score(
    model: torch.nn.Module,
    inner: PreTrainedModel,
    trees: Sequence[Tree],
    targets: Tensor,
    *,
    aux_loss: bool = False,
) -> Scores:
    """Log-probabilities and entropies of the tokens that come after the nodes `trees` read.

    Args:
        model: `inner`, or what wraps it: adapters, DDP, DeepSpeed.
        inner: with TRL's fused head, which divides by the temperature.
        targets: the tokens themselves, those of each row in order, tree after tree.
        aux_loss: compute the load-balancing loss of a mixture of experts.
    """
    backbone: Any = inner.base_model
    lines = [line for line, tree in enumerate(trees) for nodes in tree.reads for _ in nodes]
    nodes = np.concatenate([nodes for tree in trees for nodes in tree.reads])
    read = torch.tensor(np.stack([np.array(lines), nodes]), device=targets.device)
    # a checkpoint computes a layer again in backward, when it must find it as it was
    whole_layer = backbone.is_gradient_checkpointing
    once = read.unique(dim=1)  # rows may read the same node
    with (
        nullcontext() if whole_layer else last_feed_forward_at(inner, *once),
        read_at(backbone, *read),
    ):
        output = model(
            **tree_inputs(trees, inner),
            **({"output_router_logits": True} if aux_loss else {}),
            shift_labels=targets[None],
            fused_lm_head=True,
        )
    entropies = None if output.entropy is None else output.entropy[0]
    return Scores(output.log_probs[0], entropies, output.aux_loss)


@contextmanager
def read_at(backbone: torch.nn.Module, row: Tensor, column: Tensor) -> Iterator[None]:
    """Within it, `backbone` returns the hidden states of the tokens (row[i], column[i]) alone, as
    one sequence: TRL's head projects all that it is given."""

    def pick(module: torch.nn.Module, given: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[row, column].unsqueeze(0)
        return output

    hook = backbone.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def tree_inputs(trees: Sequence[Tree], model: PreTrainedModel) -> dict[str, Tensor]:
    """A model's inputs for these trees, all of them with branches or none.

    Returns: `input_ids` of shape (trees, tokens), with branches also `position_ids` and an
    `attention_mask` of shape (trees, 1, tokens, tokens).
    """
    width = max(tree.tokens for tree in trees)

    def padded(parts: Sequence[np.ndarray], value: int) -> Tensor:
        whole = np.full((len(parts), width), value, np.int64)
        for line, part in enumerate(parts):
            whole[line, : len(part)] = part
        return torch.from_numpy(whole).to(model.device)

    inputs = {"input_ids": padded([tree.ids for tree in trees], 0)}
    if trees[0].branched:
        inputs["position_ids"] = padded([tree.depths for tree in trees], 0)
        ends = padded([tree.ends for tree in trees], width)  # padding sees itself: no row is empty
        node = torch.arange(width, device=model.device)
        seen = (node <= node[:, None]) & (node[:, None] < ends[:, None, :])
        if model.config.get_text_config()._attn_implementation == "eager":  # it adds the mask
            hidden = torch.zeros(seen.shape, dtype=model.dtype, device=model.device)
            seen = hidden.masked_fill(~seen, torch.finfo(model.dtype).min)
        inputs["attention_mask"] = seen[:, None]
    return inputs


def attention_cost(model: PreTrainedModel) -> Cost:
    """From the multiplications of a token in the layers' matrices, and of a query with a key."""
    config: Any = model.config.get_text_config()
    backbone: Any = model.base_model
    held = {id(p) for module in (model.get_input_embeddings(),) for p in module.parameters()}
    weights = sum(
        int(getattr(p, "ds_numel", p.numel())) for p in backbone.parameters() if id(p) not in held
    )
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Cost(2 * size * config.num_attention_heads * config.num_hidden_layers / weights)


def tree_obstacle(model: PreTrainedModel) -> str | None:
    """Why `model` cannot take trees (None if it can): by its config, then by trial."""
    obstacle = attention_obstacle(model)
    if obstacle is not None:
        return obstacle
    try:
        difference = _trial(model)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"a trial with a tree failed: {type(error).__name__}: {error}"
    tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
    if not difference <= tolerance:
        return f"a trial with a tree gave hidden states off by {difference:.2g} (relative)"
    return None


def _trial(model: PreTrainedModel) -> float:
    """Largest difference between the hidden states of two rows as one tree and apart, relative."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = [[(7 * i + 3 * (i > 4) * n + 1) % vocabulary for i in range(n)] for n in (9, 7)]
    rows = {n: Row(np.array(row), np.array([5, len(row) - 1])) for n, row in enumerate(ids)}

    def read(trees: Sequence[Tree]) -> Tensor:
        found: dict[int, Tensor] = {}
        for tree in trees:
            output: Any = model.base_model(**tree_inputs([tree], model), use_cache=False)
            for row, nodes in zip(tree.rows, tree.reads, strict=True):
                found[row] = output.last_hidden_state[0, torch.from_numpy(nodes)]
        return torch.cat([found[row] for row in rows]).float()

    with evaluation_mode(model):
        expected = read(single(rows))
        difference = (read(grow(rows, 100, Cost(0.0))) - expected).abs().max()
        return float(difference / expected.abs().max().clamp(min=1e-6))
