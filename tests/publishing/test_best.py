"""The rule that picks the model to hand over, as tables."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.publishing import best
from miner.publishing.best import LEVEL, BestModel, Evaluated, paired_p_value

L, D, W = 0.0, 0.5, 1.0
LOST = None


def evaluated(step: int, *parts: tuple[float | None, int]) -> Evaluated:
    """`parts` are (score, how many episodes in a row)."""
    return Evaluated(step, tuple(score for score, count in parts for _ in range(count)))


BASE = evaluated(0, (L, 10), (W, 10))


@pytest.mark.parametrize(
    ("candidate", "replaces"),
    [
        (evaluated(5, (W, 20)), True),
        (evaluated(5, (L, 6), (W, 14)), True),  # four wins more: p = 1/16
        (evaluated(5, (D, 4), (L, 6), (W, 10)), True),
        (evaluated(5, (L, 7), (W, 13)), False),  # three: p = 1/8
        (evaluated(5, (L, 10), (W, 10)), False),
        (evaluated(5, (W, 10), (L, 10)), False),  # other episodes won, same mean
        (evaluated(5, (W, 6), (L, 4), (L, 4), (W, 6)), False),  # 6 up, 4 down
        (evaluated(5, (L, 20)), False),
        (evaluated(5, (LOST, 4), (W, 16)), True),  # lost episodes count for nobody
        (evaluated(5, (LOST, 10), (W, 10)), False),
        (evaluated(5, (W, 9), (LOST, 11)), False),
        (evaluated(5, (W, 10), (LOST, 10)), True),  # half of the episodes are enough
        (evaluated(5, (LOST, 20)), False),
    ],
)
def test_against_the_base(candidate: Evaluated, replaces: bool) -> None:
    assert BestModel(BASE).replaced_by(candidate) == replaces


@pytest.mark.parametrize(
    ("candidate", "replaces"),
    [
        (evaluated(9, (L, 3), (W, 17)), True),  # one win more than the highest
        (evaluated(9, (L, 4), (W, 16)), True),
        (evaluated(9, (L, 2), (W, 15), (L, 3)), True),  # three lost, two won: chance
        (evaluated(9, (W, 16), (L, 4)), True),  # other episodes, same mean
        (evaluated(9, (L, 2), (W, 12), (L, 6)), True),  # six lost, two won: p = 0.14
        (evaluated(9, (L, 4), (W, 12), (D, 3), (L, 1)), False),  # four lower, none higher
    ],
)
def test_against_the_highest_so_far(candidate: Evaluated, replaces: bool) -> None:
    base = evaluated(0, (L, 8), (W, 6), (L, 6))
    keeper = BestModel(base, best=evaluated(5, (L, 4), (W, 16)))
    assert keeper.replaced_by(candidate) == replaces


def test_copies_of_a_deal_count_as_one() -> None:
    """Three deals that are lost in both seats are shown as six games (1/64), not as three (1/8)."""
    keeper = BestModel(evaluated(0, (L, 20)), best=evaluated(5, (W, 20)))
    candidate = evaluated(9, (L, 6), (W, 14))
    assert not keeper.replaced_by(candidate)
    assert keeper.replaced_by(candidate, [number // 2 for number in range(20)])
    one_deal = BestModel(evaluated(0, (L, 20)))
    assert one_deal.replaced_by(candidate)
    assert not one_deal.replaced_by(candidate, ["deal"] * 20)


def test_small_steps_down_do_not_add_up() -> None:
    """Each is too small to be shown, from the one before; from the highest the second is not."""
    keeper = BestModel(BASE)
    for candidate in (evaluated(5, (W, 20)), evaluated(9, (L, 3), (W, 17))):
        assert keeper.replaced_by(candidate)
        keeper.accept(candidate)
    assert keeper.best.step == 9
    assert keeper.highest.step == 5
    assert not keeper.replaced_by(evaluated(12, (L, 5), (W, 15)))


def test_a_lead_over_the_best_is_not_enough_without_one_over_the_base() -> None:
    base = evaluated(0, (L, 4), (W, 16))
    best = evaluated(5, (L, 2), (W, 18))
    candidate = evaluated(9, (L, 1), (W, 19))
    assert not BestModel(base, best).replaced_by(candidate)


def test_judging_changes_nothing_and_accepting_does() -> None:
    keeper = BestModel(BASE)
    candidate = evaluated(5, (W, 20))
    assert keeper.replaced_by(candidate)
    assert keeper.best == BASE
    keeper.accept(candidate)
    assert keeper.best == keeper.highest == candidate
    assert not keeper.replaced_by(evaluated(9, (L, 4), (W, 16)))


def test_state_survives_json() -> None:
    best, highest = evaluated(9, (L, 1), (W, 19)), evaluated(5, (LOST, 1), (W, 18), (D, 1))
    keeper = BestModel(BASE, best, highest)
    again = BestModel.from_state(json.loads(json.dumps(keeper.state())))
    assert (again.base, again.best, again.highest) == (BASE, best, highest)


@pytest.mark.parametrize(
    "build",
    [
        lambda: BestModel(BASE).replaced_by(evaluated(5, (W, 19))),
        lambda: evaluated(5, (1.5, 1)),
        lambda: evaluated(5, (math.nan, 1)),
        lambda: BestModel.from_state({"base": {"step": 0, "scores": [2]}, "best": {}}),
    ],
)
def test_nonsense_is_refused(build: object) -> None:
    with pytest.raises((ValueError, KeyError)):
        build()  # type: ignore[operator]


def test_mean_leaves_lost_episodes_out() -> None:
    assert evaluated(5, (LOST, 3), (W, 1), (D, 1)).mean == 0.75
    assert math.isnan(evaluated(5, (LOST, 3)).mean)


scores = st.lists(st.sampled_from([L, D, W]), min_size=1, max_size=11)


@settings(max_examples=50)
@given(st.data())
def test_a_candidate_that_is_nowhere_better_never_replaces(data: st.DataObject) -> None:
    base = data.draw(scores)
    worse = [data.draw(st.sampled_from([s for s in (L, D, W) if s <= score])) for score in base]
    assert not BestModel(Evaluated(0, tuple(base))).replaced_by(Evaluated(5, tuple(worse)))


@settings(max_examples=25)
@given(st.data())
def test_exact_p_value_counts_the_sign_patterns(data: st.DataObject) -> None:
    first = data.draw(scores)
    second = [data.draw(st.sampled_from([L, D, W])) for _ in first]
    differences = [a - b for a, b in zip(first, second, strict=True)]
    sums = [0.0]
    for difference in differences:
        sums = [total + sign * difference for total in sums for sign in (1, -1)]
    expected = sum(total >= sum(differences) - 1e-9 for total in sums) / len(sums)
    assert paired_p_value(first, second) == pytest.approx(expected)


def test_over_ten_looks_an_equal_model_passes_far_more_often_than_at_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the level gives 13, half as much again 24."""
    monkeypatch.setattr(best, "RESAMPLES", 499)
    chance = random.Random(3)
    passed = 0
    for _ in range(60):
        base = BestModel(Evaluated(0, tuple(chance.choice([L, W]) for _ in range(100))))
        looks = (tuple(chance.choice([L, W]) for _ in range(100)) for _ in range(10))
        passed += any(base.replaced_by(Evaluated(step, look)) for step, look in enumerate(looks, 1))
    assert 14 <= passed <= 20


def test_equal_models_pass_no_more_often_than_the_level_says() -> None:
    chance = random.Random(11)
    passed = 0
    for _ in range(300):
        base, same = ([chance.choice([L, W]) for _ in range(20)] for _ in range(2))
        passed += BestModel(Evaluated(0, tuple(base))).replaced_by(Evaluated(5, tuple(same)))
    assert 0 < passed <= 1.3 * LEVEL * 300
