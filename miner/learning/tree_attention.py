"""Attention in which a token of a forest sees its ancestors alone, or the nearest of them where a
layer has a window, as an implementation that transformers models can be set to.

Attention costs what the depth of a token does, not the size of the forest: on GPUs FlexAttention
skips the blocks in which no token sees another; elsewhere a block of queries is computed with the
keys that one of them sees, which are the path to the block and the block itself, as nodes are in
depth-first order. Without a forest it is PyTorch's own attention, as models have it by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    FlexKernelOptions,
    create_block_mask,
    flex_attention,
)
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from miner.common_prefix import Ints
from miner.inference.transformers.grouped_attention import grouped_attention

BLOCKS, FLEX = "tree", "tree_flex"
"""Names of both ways among the implementations of transformers, see `register`."""

KERNEL: FlexKernelOptions = {"BACKEND": "TRITON"}
"""The same kernel for passes of any length: for fewer than 128 tokens inductor would take the one
for decoding, which has no configuration for some counts of heads (pytorch pull request 185349)."""

MOST_COMPILED = 64
"""Kinds of calls (with and without gradients, short, single, ...) that torch compiles: after eight,
its default, it would compute attention uncompiled and hold all weights, with a warning alone."""

QUERIES = 128
"""Of a block: more are fewer calls, fewer see fewer keys in vain."""


class Forest:
    """Trees one after another: node q sees node k exactly if k <= q < ends[k].

    Args:
        ends: of each node the first that is no longer below it, shape (tokens,).
        queries: nodes, ascending, whose attention is needed; None: all.
        last: number of the last layer, and this forest with the queries needed there.
        window: generations that a node sees, itself the first; None: all.
    """

    def __init__(
        self,
        ends: Ints,
        device: torch.device,
        queries: Ints | None = None,
        last: tuple[int, Forest] | None = None,
        window: int | None = None,
    ) -> None:
        self._ends = ends
        self._device = device
        self._queries = queries
        self._last = last
        self._window = window
        self._windowed: dict[int, Forest] = {}
        self._hidden: dict[torch.dtype, list[Tensor]] = {}

    def of_layer(self, number: int | None, window: int | None = None) -> Forest:
        """This forest with the queries that are needed in that layer, seen through its window."""
        forest = self._last[1] if self._last and self._last[0] == number else self
        if window is None or window > forest._depths.max():
            return forest
        if window not in forest._windowed:
            forest._windowed[window] = Forest(
                forest._ends, forest._device, forest._queries, window=window
            )
        return forest._windowed[window]

    @cached_property
    def _depths(self) -> Ints:
        """Number of ancestors of each node."""
        change = np.zeros(len(self._ends) + 1, np.int64)
        change[1:] += 1
        np.subtract.at(change, self._ends, 1)
        return np.cumsum(change)[:-1]

    @cached_property
    def queries(self) -> Tensor | None:
        """Nodes whose attention is needed; None: all."""
        return None if self._queries is None else torch.from_numpy(self._queries).to(self._device)

    @cached_property
    def keys(self) -> list[Ints]:
        """Of each block of queries the keys that one of them sees, ascending."""
        return [keys for keys, _ in self._blocks]

    @cached_property
    def all_keys(self) -> Tensor:
        """Those of all blocks, one after another."""
        return torch.from_numpy(np.concatenate(self.keys)).to(self._device)

    def hidden(self, dtype: torch.dtype) -> list[Tensor]:
        """Of each block what to add to the scores, shape (queries, keys): 0 where a query sees a
        key."""
        if dtype not in self._hidden:
            self._hidden[dtype] = [
                torch.zeros(seen.shape, dtype=dtype)
                .masked_fill_(torch.from_numpy(~seen), -torch.inf)
                .to(self._device)
                for _, seen in self._blocks
            ]
        return self._hidden[dtype]

    @cached_property
    def _blocks(self) -> list[tuple[Ints, np.ndarray]]:
        """Keys of each block of queries, and which query sees which of them."""
        every = np.arange(len(self._ends)) if self._queries is None else self._queries
        return [self._block(every[at : at + QUERIES]) for at in range(0, len(every), QUERIES)]

    def _block(self, queries: Ints) -> tuple[Ints, np.ndarray]:
        keys = np.flatnonzero(self._ends[: queries[-1] + 1] > queries[0])
        query = queries[:, None]
        seen: np.ndarray = (keys <= query) & (query < self._ends[keys])
        if self._window is not None:
            seen &= self._depths[query] - self._depths[keys] < self._window
        by_any = seen.any(0)
        return (keys, seen) if by_any.all() else (keys[by_any], seen[:, by_any])

    @cached_property
    def block_mask(self) -> BlockMask:
        """The same for FlexAttention."""
        ends, window = torch.from_numpy(self._ends).to(self._device), self._window

        def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[key])

        mask = seen
        if window is not None:
            depths = torch.from_numpy(self._depths).to(self._device)

            def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return seen(batch, head, query, key) & (depths[query] - depths[key] < window)

            mask = near
        return create_block_mask(mask, None, None, len(ends), len(ends), device=self._device)


def register() -> None:
    """Make both implementations known to transformers (idempotent)."""
    for name, attend in ((BLOCKS, in_blocks), (FLEX, by_flex)):
        AttentionInterface.register(name, partial(tree_attention, attend))
        AttentionMaskInterface.register(name, sdpa_mask)


def tree_attention(
    attend: Callable[[Tensor, Tensor, Tensor, Forest, float], Tensor],
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    forest: Forest | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """See transformers' AttentionInterface.

    Args:
        query, key, value: of shape (batch, heads, tokens, size), with fewer heads of keys.
        forest: of the batch's only line; the mask is not looked at then.
        sliding_window: of the layer; without a forest the mask has it.

    Raises: ValueError for a layer with a window that it does not pass on.
    """
    if forest is None:
        return grouped_attention(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    if sliding_window is None and _has_window(module):
        raise ValueError("its layers have a window, and leave it to the mask")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves float32 here
    forest = forest.of_layer(getattr(module, "layer_idx", None), sliding_window)
    return attend(query, key, value, forest, scale).transpose(1, 2).contiguous(), None


def _has_window(module: torch.nn.Module) -> bool:
    """Return whether a layer attends within a window, by its config."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return bool(kinds[module.layer_idx] == "sliding_attention")
    windowed = getattr(config, "use_sliding_window", True)
    return bool(windowed and getattr(config, "sliding_window", None))


def in_blocks(query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
    """PyTorch's attention of one block of queries after the other; 0 where none is needed."""
    sizes = [len(keys) for keys in forest.keys]
    needed = forest.queries
    queries = (query if needed is None else query.index_select(2, needed)).split(QUERIES, dim=2)
    keys, values = (
        whole.index_select(2, forest.all_keys).split(sizes, dim=2) for whole in (key, value)
    )
    done = [
        scaled_dot_product_attention(q, k, v, attn_mask=hidden, scale=scale, enable_gqa=True)
        for q, k, v, hidden in zip(queries, keys, values, forest.hidden(query.dtype), strict=True)
    ]
    out = torch.cat(done, dim=2)
    return out if needed is None else torch.zeros_like(query).index_copy(2, needed, out)


def by_flex(query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
    """FlexAttention, compiled, which fuses what it does not skip; all queries, needed or not."""
    return _compiled_flex()(
        *(query, key, value),
        block_mask=forest.block_mask,
        scale=scale,
        enable_gqa=True,
        kernel_options=KERNEL,
    )


def flex_obstacle(heads: int, key_heads: int, size: int, device: torch.device) -> str | None:
    """Reason not to use FlexAttention on `device` (None without one): by a trial with gradients.

    Args:
        size: of a head.
    """
    ends = np.r_[np.full(200, 600), np.full(150, 350), np.full(250, 600)]  # a trunk, two branches
    query, key, value = (
        torch.randn((1, count, len(ends), size), dtype=torch.bfloat16, device=device)
        for count in (heads, key_heads, key_heads)
    )
    found: list[list[Tensor]] = [[], []]
    try:
        with torch.enable_grad():  # the first pass may be one that is only scored
            for window in (None, 100):
                forest = Forest(ends, device).of_layer(None, window)
                for attend, parts in zip((by_flex, in_blocks), found, strict=True):
                    held = [each.clone().requires_grad_() for each in (query, key, value)]
                    out = attend(held[0], held[1], held[2], forest, size**-0.5)
                    gradients = torch.autograd.grad(out.float().square().sum(), held)
                    parts += [out.detach(), *gradients]
    except Exception as error:  # of a compiler, and of what it starts
        return f"{type(error).__name__}: {str(error)[:300]}"
    for ours, theirs in zip(*found, strict=True):
        difference = float((ours - theirs).abs().max() / theirs.abs().max())
        if not difference < 5e-2:
            return f"outputs or gradients are off by {difference:.2g} (relative)"
    return None


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    """Passes differ in length; uncompiled it would hold all weights at once."""
    compiler: Any = torch.compile  # its overloads lack the limit
    compiled: Callable[..., Tensor] = compiler(
        flex_attention, dynamic=True, recompile_limit=MOST_COMPILED
    )
    return compiled
