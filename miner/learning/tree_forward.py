"""Forward passes over trees, and the model's own head at the tokens with loss.

A pass is one line of tokens, tree after tree, in which each token sees its ancestors. For a model
that cannot take that it is a rectangle with a row in each line, padded on the right.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from miner.inference.transformers.forward import attention_obstacle, evaluation_mode
from miner.inference.transformers.last_layer import last_layer_at, trims_last_layer
from miner.learning.forest import Row, Tree, grow, single
from miner.learning.tree_attention import BLOCKS, FLEX, Forest, flex_obstacle, register

logger = logging.getLogger(__name__)


class Scores(NamedTuple):
    """Of tokens with loss, of shape (tokens,), in float32 and nats.

    A reference model's head computes no entropies.
    """

    logprobs: Tensor
    entropies: Tensor | None


def score(
    model: torch.nn.Module, inner: PreTrainedModel, trees: Sequence[Tree], targets: Tensor
) -> Scores:
    """Log-probabilities and entropies of the tokens that come after the nodes `trees` read.

    Args:
        model: `inner`, or what wraps it: adapters, DDP, DeepSpeed.
        inner: with TRL's fused head, which divides by the temperature.
        targets: the tokens themselves, those of each row in order, tree after tree.
    """
    backbone: Any = inner.base_model
    read = torch.from_numpy(read_places(trees, in_line=takes_trees(inner))).to(targets.device)
    # rows may read the same node, and most of the same tokens after it: legal replies do
    pairs, pair = torch.cat([read, targets[None]]).unique(dim=1, return_inverse=True)
    # a checkpoint computes a layer again in backward, when it must find it as it was
    whole_layer = backbone.is_gradient_checkpointing or not trims_last_layer(inner)
    once = pairs[:2].unique_consecutive(dim=1)
    with (
        nullcontext() if whole_layer else last_layer_at(inner, *once),
        read_at(backbone, *pairs[:2]),
    ):
        output = model(
            **pass_inputs(trees, inner, None if whole_layer else once[1]),
            shift_labels=pairs[2:],
            fused_lm_head=True,
        )
    entropies = None if output.entropy is None else output.entropy[0, pair]
    return Scores(output.log_probs[0, pair], entropies)


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


def takes_trees(model: PreTrainedModel) -> bool:
    """Return whether `let_take_trees` has prepared `model` for them."""
    return model.config.get_text_config()._attn_implementation in (BLOCKS, FLEX)


def read_places(trees: Sequence[Tree], *, in_line: bool) -> np.ndarray:
    """Line and column of each node that is read, shape (2, tokens with loss)."""
    starts = np.cumsum([0, *(tree.tokens for tree in trees)])
    places = [
        (0, starts[number] + nodes) if in_line else (number, nodes)
        for number, tree in enumerate(trees)
        for nodes in tree.reads
    ]
    return np.concatenate([np.stack(np.broadcast_arrays(*place)) for place in places], axis=1)


def pass_inputs(
    trees: Sequence[Tree], model: PreTrainedModel, read: Tensor | None = None
) -> dict[str, Any]:
    """A model's inputs for these trees: one line of shape (1, tokens), or (rows, longest).

    Args:
        read: nodes, ascending, that the last layer is to attend from; None: all.
    """
    if not takes_trees(model):
        rows = [torch.from_numpy(tree.ids) for tree in trees]
        return {"input_ids": pad_sequence(rows, batch_first=True).to(model.device)}
    starts = np.cumsum([0, *(tree.tokens for tree in trees)])
    ends = np.concatenate([tree.ends + at for tree, at in zip(trees, starts, strict=False)])

    def in_line(parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))[None].to(model.device)

    last = None
    if read is not None:
        layers: int = model.config.get_text_config().num_hidden_layers
        last = layers - 1, Forest(ends, model.device, read.cpu().numpy())
    return {
        "input_ids": in_line([tree.ids for tree in trees]),
        "position_ids": in_line([tree.depths for tree in trees]),
        "forest": Forest(ends, model.device, last=last),
        # given, transformers makes no mask
        "attention_mask": torch.ones((1, 1, 1, 1), dtype=torch.bool, device=model.device),
    }


def let_take_trees(
    model: PreTrainedModel, gather: Callable[[Any], list[Any]] = lambda value: [value]
) -> str | None:
    """Set `model` to attention that takes trees, unless it cannot; it attends to rows as before.

    The trial runs under the caller's autocast; where FlexAttention fails in it, blocks are tried.
    Collective: all processes use the same attention, and an obstacle of one counts for all.

    Args:
        gather: this process's value -> those of all processes.

    Returns: why not (None if it can): by its config, then by trial.
    """
    obstacle = attention_obstacle(model, windows=True)
    if obstacle is not None:
        return obstacle
    before = model.config.get_text_config()._attn_implementation
    register()
    if BLOCKS not in gather(_best_implementation(model)):
        obstacle = _obstacle_of_any(gather(_trial_obstacle(model, FLEX)))
        if obstacle is None:
            return None
        logger.warning("trees are computed in blocks, as FlexAttention failed: %s", obstacle)
        model.set_attn_implementation(before)
    obstacle = _obstacle_of_any(gather(_trial_obstacle(model, BLOCKS)))
    if obstacle is not None:
        model.set_attn_implementation(before)
    return obstacle


def _obstacle_of_any(obstacles: Sequence[str | None]) -> str | None:
    return next((obstacle for obstacle in obstacles if obstacle is not None), None)


def _trial_obstacle(model: PreTrainedModel, implementation: str) -> str | None:
    """Reason against this attention (None without one); `model` may be left with it."""
    try:
        difference = _trial(model, implementation)
    except Exception as error:  # also of a compiler, and of what it starts
        return f"a trial with a tree failed: {type(error).__name__}: {str(error)[:300]}"
    if not difference <= (1e-3 if _computes_in(model) == torch.float32 else 5e-2):
        return f"a trial with a tree gave hidden states off by {difference:.2g} (relative)"
    return None


def _computes_in(model: PreTrainedModel) -> torch.dtype:
    """The dtype of `model`'s matrix products here."""
    kind = model.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    dtype: torch.dtype = model.dtype
    return dtype


def _best_implementation(model: PreTrainedModel) -> str:
    """FlexAttention on a GPU where it works, else blocks."""
    if model.device.type != "cuda":
        return BLOCKS
    config: Any = model.config.get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    obstacle = flex_obstacle(heads, key_heads, size, model.device)
    if obstacle is None:
        return FLEX
    logger.warning("trees are computed in blocks, as FlexAttention failed: %s", obstacle)
    return BLOCKS


def _trial(model: PreTrainedModel, implementation: str) -> float:
    """Largest difference between the hidden states of two rows as one tree and apart, relative."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = [[(7 * i + 3 * (i > 4) * n + 1) % vocabulary for i in range(n)] for n in (9, 7)]
    rows = {n: Row(np.array(row), np.array([5, len(row) - 1])) for n, row in enumerate(ids)}

    def read(trees: Sequence[Tree]) -> Tensor:
        found: dict[int, Tensor] = {}
        for tree in trees:
            output: Any = model.base_model(**pass_inputs([tree], model), use_cache=False)
            for row, nodes in zip(tree.rows, tree.reads, strict=True):
                found[row] = output.last_hidden_state[0, torch.from_numpy(nodes)]
        return torch.cat([found[row] for row in rows]).float()

    with evaluation_mode(model):
        expected = read(single(rows))
        model.set_attn_implementation(implementation)
        difference = (read(grow(rows, 100)) - expected).abs().max()
        return float(difference / expected.abs().max().clamp(min=1e-6))


def part_of(inputs: dict[str, Any], trees: Sequence[Tree]) -> dict[str, Any]:
    """The rows of these trees, as they come there, without columns that are padding in all of
    them; values that are no tensor of rows stay as they are."""
    rows = [row for tree in trees for row in tree.rows]
    width = max(len(nodes) for tree in trees for nodes in tree.reads)

    def of_rows(value: Tensor) -> Tensor:
        part = value[rows][:, :width]
        # TRL takes a single column for one value of a whole row, which no mask hides
        return torch.nn.functional.pad(part, (0, max(0, 2 - part.shape[1])))

    return {
        name: of_rows(value) if isinstance(value, Tensor) and value.dim() == 2 else value
        for name, value in inputs.items()
    }
