"""Attention over forests, in blocks and by FlexAttention, against a dense mask of ancestors."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from miner.learning import tree_attention
from miner.learning.forest import Row, grow
from miner.learning.tree_attention import Forest

HEADS, KEY_HEADS, SIZE = 4, 2, 16


@pytest.fixture(scope="module")
def ends():
    """Of two trees of rows that begin alike, and a row alone: longer than a few blocks."""
    draw = np.random.default_rng(0)
    lines = []
    for start in (0, 0, 0, 0, 7, 7, 7, 9):
        share = draw.integers(20, 90) if start < 9 else 0
        lines.append(np.array([*range(start, start + share), *draw.integers(100, 900, 60)]))
    rows = {n: Row(ids, np.array([len(ids) - 1])) for n, ids in enumerate(lines)}
    trees = grow(rows, 1000)
    assert len(trees) == 3
    starts = np.cumsum([0, *(tree.tokens for tree in trees)])
    return np.concatenate([tree.ends + at for tree, at in zip(trees, starts, strict=False)])


def dense(ends, window=None):
    """Node q descends from node k, and is no further away than the window, by the definition
    alone."""
    count = len(ends)
    seen = torch.tensor([[k <= q < ends[k] for k in range(count)] for q in range(count)])
    depths = seen.sum(1)
    return seen & (depths[:, None] - depths < (window or count))


def states(count):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn((1, heads, count, SIZE), generator=generator, requires_grad=True)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]


def learned(attend, count):
    """Output and gradients of an attention."""
    held = states(count)
    out = attend(*held)
    gradients = torch.autograd.grad((out * torch.linspace(-1, 1, SIZE)).sum(), held)
    return [out.detach(), *gradients]


@pytest.mark.parametrize("window", [None, 1, 7, 70, 10_000])
@pytest.mark.parametrize("queries", [16, 128, 10_000])
def test_blocks_attend_to_the_nearest_ancestors_alone(ends, queries, window, monkeypatch):
    monkeypatch.setattr(tree_attention, "QUERIES", queries)
    forest = Forest(ends, torch.device("cpu"))

    def in_blocks(query, key, value):
        given = (torch.nn.Module(), query, key, value, None)
        out, _ = tree_attention.tree_attention(
            tree_attention.in_blocks, *given, forest=forest, sliding_window=window
        )
        return out.transpose(1, 2)

    def with_mask(query, key, value):
        return scaled_dot_product_attention(
            query, key, value, attn_mask=dense(ends, window), enable_gqa=True
        )

    pairs = zip(learned(in_blocks, len(ends)), learned(with_mask, len(ends)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, True),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, False),
        ({"sliding_window": 8}, True),
        ({"sliding_window": 8, "use_sliding_window": False}, False),
        ({}, False),
    ],
)
def test_a_layer_that_leaves_its_window_to_the_mask_takes_no_trees(ends, config, refused):
    layer = torch.nn.Module()
    layer.layer_idx, layer.config = 1, SimpleNamespace(**config)

    def attend(**more):
        given = (layer, *states(len(ends)), None)
        forest = Forest(ends, torch.device("cpu"))
        tree_attention.tree_attention(tree_attention.in_blocks, *given, forest=forest, **more)

    attend(sliding_window=8)
    with pytest.raises(ValueError, match="a window") if refused else nullcontext():
        attend()


@pytest.mark.parametrize("queries", [16, 10_000])
def test_the_last_layer_attends_from_the_nodes_that_are_read(ends, queries, monkeypatch):
    monkeypatch.setattr(tree_attention, "QUERIES", queries)
    cpu = torch.device("cpu")
    read = np.r_[3, np.arange(7, len(ends), 5)]
    forest = Forest(ends, cpu, last=(1, Forest(ends, cpu, read)))
    assert forest.of_layer(0) is forest
    assert forest.of_layer(0, 10_000) is forest  # a window that no path is longer than
    assert forest.of_layer(0, 7) is forest.of_layer(0, 7)  # its masks are made once
    assert sum(map(len, forest.of_layer(1).keys)) < sum(map(len, forest.keys))

    def of(layer):
        def attend(*given):
            out = tree_attention.in_blocks(*given, forest.of_layer(layer), 0.3)
            return out[:, :, read]

        return learned(attend, len(ends))

    for ours, theirs in zip(of(1), of(0), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    out = tree_attention.in_blocks(*states(len(ends)), forest.of_layer(1), 0.3)
    assert not out[:, :, np.setdiff1d(np.arange(len(ends)), read)].any()


def test_a_block_looks_at_no_other_tree_and_no_finished_branch(ends):
    forest = Forest(ends, torch.device("cpu"))
    seen = sum(len(keys) for keys in forest.keys)
    assert seen < 0.8 * sum(range(0, len(ends), tree_attention.QUERIES))
    assert all(hidden.isfinite().any(0).all() for hidden in forest.hidden(torch.float32))


@pytest.mark.parametrize("window", [None, 7])
def test_the_block_mask_of_flex_attention_is_that_of_ancestors(ends, window):
    mask = Forest(ends, torch.device("cpu")).of_layer(0, window).block_mask
    count = torch.arange(len(ends))
    seen = mask.mask_mod(torch.tensor(0), torch.tensor(0), count[:, None], count)
    assert torch.equal(seen, dense(ends, window))
    skipped = mask.to_dense()[0, 0] == 0
    size = mask.BLOCK_SIZE[0]
    for query, key in skipped.nonzero().tolist():
        block = seen[query * size : (query + 1) * size, key * size : (key + 1) * size]
        assert not block.any()
    assert skipped.any()


@pytest.fixture
def uncompiled(monkeypatch):
    """FlexAttention as it runs without a GPU: forward only."""
    monkeypatch.setattr(tree_attention, "_compiled_flex", lambda: flex_attention)


@pytest.mark.parametrize("window", [None, 7])
def test_flex_attention_is_the_same_as_blocks(ends, window, uncompiled):
    forest = Forest(ends, torch.device("cpu")).of_layer(0, window)
    given = *(part.detach() for part in states(len(ends))), forest, 0.3
    ours, theirs = tree_attention.by_flex(*given), tree_attention.in_blocks(*given)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_flex_attention_is_compiled_for_one_kernel_and_for_every_kind_of_call(ends, monkeypatch):
    """What inductor and dynamo choose by default shows on a GPU alone."""
    compiled, called = [], []

    def compiler(function, **options):
        compiled.append(options)
        return lambda *given, **named: called.append(named)

    monkeypatch.setattr(torch, "compile", compiler)
    monkeypatch.setattr(tree_attention, "_compiled_flex", tree_attention._compiled_flex.__wrapped__)
    tree_attention.by_flex(*states(len(ends)), Forest(ends, torch.device("cpu")), 0.3)
    assert compiled[0]["recompile_limit"] > 8
    assert compiled[0]["dynamic"]
    assert called[0]["kernel_options"]["BACKEND"] == "TRITON"


def test_where_flex_attention_computes_no_gradients_it_is_not_used(uncompiled):
    reason = tree_attention.flex_obstacle(HEADS, KEY_HEADS, SIZE, torch.device("cpu"))
    assert reason
    assert "CPU" in reason


def test_flex_attention_that_works_is_used(monkeypatch):
    monkeypatch.setattr(tree_attention, "by_flex", tree_attention.in_blocks)
    cpu = torch.device("cpu")
    with torch.no_grad():  # the first rows may be scored only, as recorded ones that are held out
        assert tree_attention.flex_obstacle(HEADS, KEY_HEADS, SIZE, cpu) is None
    monkeypatch.setattr(tree_attention, "by_flex", lambda *given: -tree_attention.in_blocks(*given))
    assert "off by" in tree_attention.flex_obstacle(HEADS, KEY_HEADS, SIZE, cpu)
