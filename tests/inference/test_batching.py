"""The engine's parts that a sampler's user sees only by accident."""

import math

import pytest
import torch

from miner.inference.transformers.batching import BatchEngine, DecodeRow, buckets, draw
from miner.inference.transformers.forward import (
    CachedForward,
    PlainForward,
    cache_obstacle,
    evaluation_mode,
)
from tests.builders import build_llama, build_qwen3


def build_row(length, *, slot=-1, limit=8, session=None):
    row = DecodeRow(ids=list(range(5, 5 + length)), limit=limit, temperature=0.0, session=session)
    row.slot = slot
    return row


@pytest.mark.parametrize(
    ("uniform", "expected"),
    [(0.0, 1), (0.2499, 1), (0.25, 2), (0.4999, 2), (0.5, 3), (1 - 2**-53, 3)],
)
def test_draw_inverts_the_cumulative_distribution(uniform, expected):
    logits = torch.tensor([[-math.inf, 0.25, 0.25, 0.5]]).log()
    logits[0, 0] = -math.inf
    ids, logprobs = draw(logits, [1.0], [uniform])
    assert ids == [expected]
    assert math.exp(logprobs[0]) == pytest.approx([0, 0.25, 0.25, 0.5][expected])


def test_draw_serves_rows_of_different_temperatures():
    logits = torch.tensor([[0.0, 1.0]] * 3)
    ids, logprobs = draw(logits, [0.0, 1.0, 0.5], [0.0, 0.1, 0.1])
    assert ids == [1, 0, 0]
    expected = [0.0, -math.log1p(math.e), -math.log1p(math.e**2)]
    assert logprobs == pytest.approx(expected)


def test_buckets_keep_long_prefills_apart_from_decodes():
    rows = [build_row(600, slot=3), *(build_row(1, slot=i) for i in (2, 5, 0))]
    forward = PlainForward(build_qwen3())
    assert [[row.slot for row in b] for b in buckets(rows, forward)] == [[3], [0, 2, 5]]
    alike = [build_row(20 + i, slot=9 - i) for i in range(5)]
    assert [[row.slot for row in b] for b in buckets(alike, forward)] == [[5, 6, 7, 8, 9]]
    ragged = [build_row(length, slot=slot) for slot, length in enumerate((1000, 950, 600, 580))]
    assert [[row.slot for row in b] for b in buckets(ragged, forward)] == [[0, 1], [2, 3]]
    long = [build_row(9000, slot=i) for i in range(2)]
    assert [[row.slot for row in b] for b in buckets(long, forward)] == [[1], [0]]


def test_only_new_tokens_go_through_the_model_and_twins_only_once():
    model, shapes = build_qwen3(), []
    engine = BatchEngine(CachedForward(model), [1], max_sessions=4, seed=0)

    def ask(rows):
        shapes.clear()
        for row in rows:
            engine.admit(row)
        with evaluation_mode(model):
            assert set(engine.step()) == set(rows)
        return rows

    model.register_forward_pre_hook(
        lambda *call: shapes.append(tuple(call[2]["input_ids"].shape)), with_kwargs=True
    )
    first = ask([build_row(30, limit=1, session=i) for i in range(3)])
    assert shapes == [(1, 30), (2, 1)]
    assert len({row.ids[-1] for row in first}) == 1
    second = [build_row(30, limit=1, session=i) for i in range(3)]
    for row, before in zip(second, first, strict=True):
        row.ids = [*before.ids, 50, 51]
    ask(second)
    assert shapes == [(3, 3)]


class WatchedIds(list):
    """Ids that note how many of them, from the first, are copied."""

    copied = 0

    def __getitem__(self, at):
        part = super().__getitem__(at)
        if isinstance(at, slice) and not at.start:
            self.copied += len(part)
        return part


def test_a_step_in_which_nothing_waits_looks_at_no_row_from_its_first_id():
    model = build_qwen3(eos_token_id=None)
    engine = BatchEngine(CachedForward(model), [1], max_sessions=2, seed=0)
    row = build_row(30, limit=4)
    row.ids = WatchedIds(row.ids)
    engine.admit(row)
    with evaluation_mode(model):
        engine.step()
        row.ids.copied = 0
        engine.step()
        assert row.ids.copied == 0
        engine.admit(build_row(30, limit=4))
        engine.step()
        assert row.ids.copied == 31


def prefills(model, engine, rows):
    """Tokens that go through the model until these rows, of one token each, are over."""
    tokens = []
    hook = model.register_forward_pre_hook(
        lambda *call: tokens.append(call[2]["input_ids"].numel()), with_kwargs=True
    )
    for row in rows:
        engine.admit(row)
    with evaluation_mode(model):
        while engine.busy:
            engine.step()
    hook.remove()
    return sum(tokens)


RULES, OTHER_RULES = list(range(5, 105)), list(range(105, 205))


def game(rules, number, session=None):
    """A row of one token: rules, then what only this game has."""
    ids = [*rules, 300 + number, 350 + number, 5]
    return DecodeRow(ids=ids, limit=1, temperature=0.0, session=session)


def test_games_that_start_together_compute_their_rules_once():
    model = build_qwen3()
    engine = BatchEngine(CachedForward(model), [1], max_sessions=8, seed=0)
    rows = [game(rules, n) for n, rules in enumerate([RULES, OTHER_RULES] * 4)]
    assert prefills(model, engine, rows) == 2 * 103 + 6 * 3
    assert_plain(model, rows)


def test_without_a_cache_no_row_waits_for_another():
    model = build_qwen3()
    engine = BatchEngine(PlainForward(model), [1], max_sessions=8, seed=0)
    forwards = []
    model.register_forward_pre_hook(lambda *call: forwards.append(call))
    for number in range(3):
        engine.admit(game(RULES, number))
    with evaluation_mode(model):
        engine.step()
    assert len(forwards) == 1


def test_deals_of_a_game_share_its_rules_and_members_of_a_group_their_deal():
    model = build_qwen3()
    engine = BatchEngine(CachedForward(model), [1], max_sessions=8, seed=0)
    deals = [[*RULES, *range(first, first + 300)] for first in (0, 80)]
    rows = [game(deal, n) for deal in deals for n in range(4)]
    assert prefills(model, engine, rows) == 403 + 303 + 6 * 3
    assert_plain(model, rows)


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "still open"])
def test_a_new_session_begins_with_what_any_other_holds(ended):
    model = build_qwen3()
    engine = BatchEngine(CachedForward(model), [1], max_sessions=3, seed=0)
    prefills(model, engine, [game(RULES, 0, session=0)])
    if ended:
        engine.forget(0)
    later = game(RULES, 1, session=1)
    assert prefills(model, engine, [later]) == 3
    again = game(RULES, 0, session=0)  # what it held is there still
    again.ids += [60]
    assert prefills(model, engine, [again]) == 1
    assert_plain(model, [later, again])


def test_a_row_that_joins_copies_from_one_that_decodes():
    model = build_qwen3(eos_token_id=None)
    engine = BatchEngine(CachedForward(model), [1], max_sessions=2, seed=0)
    first = game(RULES, 0)
    first.limit = 3
    engine.admit(first)
    with evaluation_mode(model):
        engine.step()
    joined = game(RULES, 1)
    assert prefills(model, engine, [joined]) == 2 * 3 + 1  # beside the other's next token, padded
    assert_plain(model, [joined])


def test_the_least_recently_used_slot_is_overwritten():
    model = build_qwen3()
    engine = BatchEngine(CachedForward(model), [1], max_sessions=2, seed=0)
    for number, rules in enumerate([RULES, OTHER_RULES, list(range(205, 300))]):
        prefills(model, engine, [game(rules, number, session=number)])
    assert prefills(model, engine, [game(OTHER_RULES, 7, session=3)]) == 3
    assert prefills(model, engine, [game(RULES, 7, session=4)]) == 103


def test_of_slots_without_a_session_the_least_recently_used_is_overwritten():
    model = build_qwen3()
    engine = BatchEngine(CachedForward(model), [1], max_sessions=3, seed=0)
    third = list(range(205, 300))
    for rules in (RULES, OTHER_RULES, third):
        assert prefills(model, engine, [game(rules, 0)]) == len(rules) + 3  # none overwritten
    assert prefills(model, engine, [game(RULES, 1)]) == 3
    assert prefills(model, engine, [game(third, 1)]) == 3
    assert prefills(model, engine, [game(OTHER_RULES, 1)]) == 103


def assert_plain(model, rows):
    """Each row's last id is what a plain forward says."""
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor([row.ids[:-1]])).logits[0, -1]
        assert row.ids[-1] == int(logits.argmax())


def test_weights_that_change_midway_make_rows_start_over():
    model = build_qwen3(eos_token_id=None)
    forward = CachedForward(model)
    engine = BatchEngine(forward, [1], max_sessions=2, seed=0)
    row = build_row(6, limit=4)
    engine.admit(row)
    with evaluation_mode(model):
        for _ in range(2):
            assert engine.step() == []
        for parameter in model.parameters():
            parameter.mul_(1.5)
        states = forward.cache
        engine.reset(weight_version=1)
        assert forward.cache is not states
        engine.step()
        expected = model(torch.tensor([row.ids[:-1]])).logits[0, -1].argmax()
    assert row.ids[-1] == int(expected)


@pytest.mark.parametrize(
    ("build", "dtype", "most"),
    [
        (build_qwen3, torch.float32, 1e-4),
        (build_llama, torch.float32, 1e-4),
        (build_qwen3, torch.bfloat16, 0.1),
    ],
)
def test_cached_logits_are_the_plain_ones(build, dtype, most):
    """Ragged rows in slots far apart, grown and rolled back over several turns."""
    model = build().to(dtype)
    cached, plain = CachedForward(model), PlainForward(model)
    rows = [build_row(length, slot=slot) for length, slot in ((7, 1), (90, 4), (31, 5), (1, 11))]
    with evaluation_mode(model):
        for turn in range(4):
            chosen = rows if turn % 2 else rows[1:3]
            difference = cached.logits(chosen) - plain.logits(chosen)
            assert float(difference.abs().max()) < most
            for number, row in enumerate(rows):
                row.cached = max(0, row.cached - 3 * turn)
                row.ids = [*row.ids[: row.cached], *range(40 + turn, 60 + 9 * number)]


def test_a_model_that_chooses_what_its_tokens_attend_to_gets_no_mask():
    model = build_qwen3()
    model.config.index_topk = 64
    assert "64 others that it chooses" in cache_obstacle(model)


def test_cache_is_refused_where_a_trial_disagrees(monkeypatch):
    model = build_qwen3()
    assert cache_obstacle(model) is None
    forward = model.forward

    def deaf_to_masks(*args, attention_mask=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    monkeypatch.setattr(model, "forward", deaf_to_masks)
    assert "trial with the cache" in cache_obstacle(model)
