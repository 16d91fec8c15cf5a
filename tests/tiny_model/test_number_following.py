"""The warm-start data: distributions of rules, and sheets that say what the rule looked at."""

import random
import re
from dataclasses import replace

import pytest

from miner.tiny_model.number_following import DataRecipe, draw_conversation
from miner.tiny_model.rules import Rule, answer_probabilities

OPTIONS = [1, 2, 5, 8]


@pytest.mark.parametrize(
    ("rule", "best"),
    [(Rule.NEAREST, 5), (Rule.FARTHEST, 1), (Rule.HIGHEST, 8), (Rule.LOWEST, 1)],
)
def test_the_rule_s_option_is_the_most_probable(rule, best):
    probabilities = answer_probabilities(rule, 2.0, 6, OPTIONS)
    assert sum(probabilities) == pytest.approx(1)
    assert OPTIONS[probabilities.index(max(probabilities))] == best


def test_any_option_is_as_good_as_another():
    assert answer_probabilities(Rule.ANY, 2.0, 6, OPTIONS) == [0.25] * 4


def conversations(count=200, progress=1.0, **fields):
    rng = random.Random(0)
    recipe = replace(DataRecipe(), **fields)
    return [draw_conversation(rng, recipe, progress) for _ in range(count)]


def test_each_sheet_lists_exactly_the_ids_that_may_be_answered():
    for conversation in conversations():
        for turn in conversation.turns:
            listed = tuple(int(i) for i in re.findall(r"^(\d+) -> ", turn.text, re.MULTILINE))
            assert listed == turn.ids
            assert turn.answer in turn.ids
            assert len(turn.probabilities) == len(turn.ids)
            assert sum(turn.probabilities) == pytest.approx(1)


def test_what_the_rule_looks_at_stands_in_the_sheet():
    nearest = ((Rule.NEAREST, 1.0),)
    for conversation in conversations(rules=nearest, sharpness=(40.0,)):
        for turn in conversation.turns:
            peak = max(turn.probabilities)
            best = [i + 1 for i, p in zip(turn.ids, turn.probabilities, strict=True) if p == peak]
            heads = turn.text.partition(" -> ")[0]
            shown = {int(n) for n in re.findall(r": (\d+)(?![\d ])", heads)}
            shown |= {int(n) for n in re.findall(r": (\d+) [a-z]", heads)}
            numbers = [i + 1 for i in turn.ids]
            nearest_of_some = {
                n for s in shown for n in numbers if abs(n - s) == min(abs(m - s) for m in numbers)
            }
            assert set(best) <= nearest_of_some


def test_labels_of_the_game_are_members_of_the_pool_like_any_other():
    found = [c for c in conversations(400) if "Current point card:" in c.turns[0].text]
    assert 0 < len(found) < 400 / 3


def test_sheets_start_short():
    early, late = (conversations(progress=progress) for progress in (0.0, 1.0))
    turns, characters = (
        [sum(len(c.turns) for c in drawn) for drawn in (early, late)],
        [sum(len(c.turns[0].text) for c in drawn) for drawn in (early, late)],
    )
    assert turns[0] < 0.75 * turns[1]
    assert characters[0] < 0.75 * characters[1]


def test_the_same_randomness_draws_the_same_conversations():
    assert conversations(20) == conversations(20)
