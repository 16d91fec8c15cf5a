"""Rows that join and leave one batch of the model's own cache get the logits of the plain way."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from miner.inference.transformers.batching import BatchEngine, DecodeRow
from miner.inference.transformers.forward import PlainForward, evaluation_mode, trial_obstacle
from miner.inference.transformers.own_cache import OwnCacheForward
from tests.base_models.pool import POOL, make_folder
from tests.builders import build_qwen3

KINDS = {"olmo_hybrid", "nemotron_h", "lfm2", "gemma4", "olmo3"}
"""States of linear attention, of Mamba, of convolutions; windows of eight tokens, with and without
layers that share their keys and values."""


def played(model, forward, seed):
    """Ids and log-probabilities of thirty rows, of which six at most decode at once: they begin
    and end at different steps, and some are given up."""
    draw, engine = random.Random(seed), BatchEngine(forward, [1], max_sessions=6, seed=seed)
    rows = []
    for number in range(30):
        ids = [draw.randrange(5, 60) for _ in range(draw.randint(1, 30))]
        rows.append(DecodeRow(ids, limit=draw.randint(1, 12), temperature=0.8, session=number))
    waiting = list(rows)
    with evaluation_mode(model):
        while waiting or engine.busy:
            for row in waiting[: draw.randint(0, 3)]:
                engine.admit(waiting.pop(0))
                row.abandoned = draw.random() < 0.1
            engine.step()
            if draw.random() < 0.05:
                engine.reset(1)  # the weights have changed
    return [row.reply and (row.reply.token_ids, row.reply.logprobs) for row in rows]


def assert_as_plain(model):
    own, plain = (played(model, of(model), seed=3) for of in (OwnCacheForward, PlainForward))
    assert None in own
    for mine, its in zip(own, plain, strict=True):
        assert (mine is None) == (its is None)
        if mine:
            assert mine[0] == its[0]
            assert mine[1] == pytest.approx(its[1], abs=1e-4)


@pytest.mark.parametrize(
    "base", [base for base in POOL if base.kind in KINDS], ids=lambda base: base.kind
)
def test_rows_of_a_hybrid_model_decode_as_by_the_plain_way(base, tmp_path: Path):
    make_folder(base, tmp_path)
    assert_as_plain(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval())


def test_a_step_runs_one_token_of_each_row_that_decodes():
    model, shapes = build_qwen3(), []
    engine = BatchEngine(OwnCacheForward(model), [1], max_sessions=8, seed=0)
    model.register_forward_pre_hook(
        lambda *call: shapes.append(tuple(call[2]["input_ids"].shape)), with_kwargs=True
    )
    for length in (20, 300):
        engine.admit(DecodeRow([5] * length, limit=3, temperature=0.0, session=None))
    with evaluation_mode(model):
        engine.step()
        engine.admit(DecodeRow([5] * 200, limit=3, temperature=0.0, session=None))
        for _ in range(4):
            engine.step()
    assert shapes == [(1, 300), (1, 20), (1, 200), (2, 1), (3, 1), (1, 1)]


def test_states_of_rows_that_are_over_are_not_kept():
    """Rows overlap without end; the batch is never wider than the longest that is in it."""
    model = build_qwen3()
    forward = OwnCacheForward(model)
    engine = BatchEngine(forward, [1], max_sessions=8, seed=0)
    with evaluation_mode(model):
        for limit in (1, 4, 4) * 15:
            engine.admit(DecodeRow([5] * 9, limit=limit, temperature=0.0, session=None))
            engine.step()
            assert sum(len(batch.rows) for batch in forward._batches) <= 5
            assert max(batch.mask.shape[1] for batch in forward._batches) <= 9 + 4


def test_a_model_that_does_not_heed_its_mask_is_refused(monkeypatch):
    model = build_qwen3()
    forward = model.forward
    assert trial_obstacle(model, OwnCacheForward(model)) is None
    monkeypatch.setattr(
        model, "forward", lambda *args, **given: forward(*args, **given | {"attention_mask": None})
    )
    assert "trial with the cache" in trial_obstacle(model, OwnCacheForward(model))
