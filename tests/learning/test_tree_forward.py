"""Scores of tokens with loss: of rows together what they are of each alone."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BloomConfig, Qwen2Config
from trl.trainer.utils import add_fused_lm_head

from miner.learning import tree_attention, tree_forward
from miner.learning.forest import Row, grow, single
from miner.learning.tree_attention import BLOCKS, FLEX
from miner.learning.tree_forward import let_take_trees, score
from tests.builders import build_qwen3


@pytest.fixture
def model():
    built = build_qwen3()
    add_fused_lm_head(built, temperature=1.0, outputs=("log_probs", "entropy"))
    return built


def legal_replies():
    """Rows of a prompt, and after each the same call but for one token."""
    prompt, call = list(range(3, 13)), list(range(20, 26))
    rows = [[*prompt, *call, 30 + number, 40, 41] for number in range(4)]
    targets = np.arange(len(prompt), len(rows[0]))
    return {number: Row(np.array(row), targets) for number, row in enumerate(rows)}


def learned(model, trees, rows):
    """Log-probabilities and entropies by row, and gradients."""
    model.zero_grad()
    targets = [torch.from_numpy(rows[n].ids[rows[n].targets]) for tree in trees for n in tree.rows]
    found = score(model, model, trees, torch.cat(targets))
    weight = torch.linspace(-1, 1, len(targets[0]))
    numbers = [n for tree in trees for n in tree.rows]
    assert numbers == sorted(numbers)
    (found.logprobs.view(len(rows), -1) * weight).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return {"logprobs": found.logprobs.detach(), "entropies": found.entropies} | gradients


def test_the_head_projects_what_rows_have_in_common_once(model):
    rows, projected = legal_replies(), []
    taking = copy.deepcopy(model)
    assert let_take_trees(taking) is None
    forward = taking.forward

    def watched(*args, shift_labels, **kwargs):
        projected.append(shift_labels.numel())
        return forward(*args, shift_labels=shift_labels, **kwargs)

    taking.forward = watched
    ours = learned(taking, grow(rows, 1000), rows)
    # six tokens of the call once, and of each reply the other three
    assert projected == [6 + 4 * 3]
    theirs = learned(model, single(rows), rows)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize(("config", "expected"), [(BloomConfig, (8, 8)), (Qwen2Config, (32, 32))])
def test_a_gpu_tries_flex_attention_with_the_models_heads(monkeypatch, config, expected):
    """Some families have no setting for heads of keys."""
    monkeypatch.setattr(tree_forward, "flex_obstacle", lambda *given: tried.append(given[:2]))
    tried = []
    double = SimpleNamespace(device=torch.device("cuda"), config=config())
    assert tree_forward._best_implementation(double) == FLEX
    assert tried == [expected]


def attention(model):
    return model.config._attn_implementation


def raising(*given):
    raise RuntimeError("no kernel for this head")


def test_blocks_are_computed_where_flex_attention_fails_in_the_model(model, monkeypatch, caplog):
    """It has passed its own trial, as on a GPU."""
    monkeypatch.setattr(tree_forward, "_best_implementation", lambda model: FLEX)
    for flex in (raising, lambda *given: -tree_attention.in_blocks(*given)):
        monkeypatch.setattr(tree_attention, "by_flex", flex)
        taking = copy.deepcopy(model)
        assert let_take_trees(taking) is None
        assert attention(taking) == BLOCKS
    assert "no kernel for this head" in caplog.text
    assert "off by" in caplog.text


def test_a_model_in_which_blocks_fail_too_attends_as_before(model, monkeypatch):
    before = attention(model)
    monkeypatch.setattr(tree_forward, "_best_implementation", lambda model: FLEX)
    monkeypatch.setattr(tree_attention, "by_flex", raising)
    monkeypatch.setattr(tree_attention, "in_blocks", raising)
    assert "no kernel for this head" in let_take_trees(model)
    assert attention(model) == before


def test_the_trial_computes_in_the_dtype_that_training_does(model, monkeypatch):
    seen, in_blocks = set(), tree_attention.in_blocks

    def watched(query, *others):
        seen.add(query.dtype)
        return in_blocks(query, *others)

    monkeypatch.setattr(tree_attention, "in_blocks", watched)
    with torch.autocast("cpu", torch.bfloat16):
        assert let_take_trees(model) is None
    assert seen == {torch.bfloat16}


class TwoRanks:
    """Two threads that exchange values; `calls` are of each."""

    def __init__(self):
        self._barrier = threading.Barrier(2, timeout=60)
        self._values = [None, None]
        self.calls = [0, 0]

    def gather_of(self, rank):
        def gather(value):
            self.calls[rank] += 1
            self._values[rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        return gather


@pytest.mark.parametrize(
    ("best", "failing", "attentions"),
    [
        ((FLEX, FLEX), {(1, FLEX)}, {BLOCKS}),
        ((FLEX, BLOCKS), {(0, FLEX)}, {BLOCKS}),
        ((BLOCKS, BLOCKS), {(0, BLOCKS)}, {"sdpa"}),
        ((FLEX, FLEX), {(0, FLEX), (1, BLOCKS)}, {"sdpa"}),
        ((FLEX, FLEX), set(), {FLEX}),
    ],
)
def test_ranks_agree_on_attention(model, monkeypatch, best, failing, attentions):
    models, ranks = [model, copy.deepcopy(model)], TwoRanks()

    def number(model):
        return next(rank for rank in range(2) if models[rank] is model)

    def trial(model, implementation):
        if (number(model), implementation) in failing:
            raise RuntimeError("only here")
        model.set_attn_implementation(implementation)
        return 0.0

    monkeypatch.setattr(tree_forward, "_best_implementation", lambda model: best[number(model)])
    monkeypatch.setattr(tree_forward, "_trial", trial)
    with ThreadPoolExecutor(2) as threads:
        found = [
            threads.submit(let_take_trees, models[rank], ranks.gather_of(rank)) for rank in range(2)
        ]
        obstacles = [each.result() for each in found]
    assert obstacles[0] == obstacles[1]
    assert set(map(attention, models)) == attentions
    assert (obstacles[0] is None) == (attentions != {"sdpa"})
    assert ranks.calls[0] == ranks.calls[1]
