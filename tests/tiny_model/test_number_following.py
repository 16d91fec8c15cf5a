"""The warm-start data: distributions of rules, and sheets that say what the rule looked at."""

import random
import re
from dataclasses import replace

import pytest

from miner.tiny_model.number_following import DataRecipe, Lesson, draw_conversation
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


def conversations(count=200, lesson=Lesson(), **fields):  # noqa: B008 - it is immutable
    rng = random.Random(0)
    recipe = replace(DataRecipe(), **fields)
    return [draw_conversation(rng, recipe, lesson) for _ in range(count)]


def test_each_sheet_lists_exactly_the_ids_that_may_be_answered():
    for conversation in conversations():
        for turn in conversation.turns:
            listed = tuple(int(i) for i in re.findall(r"^(\d+) -> ", turn.text, re.MULTILINE))
            assert listed == turn.ids
            assert turn.answer in turn.ids
            assert len(turn.probabilities) == len(turn.ids)
            assert sum(turn.probabilities) == pytest.approx(1)


def test_what_the_rule_looks_at_is_in_the_sheet():
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


def test_lessons_of_short_sheets_are_short():
    early, late = (conversations(lesson=Lesson(short=share)) for share in (0.8, 0.0))
    turns, characters = (
        [sum(len(c.turns) for c in drawn) for drawn in (early, late)],
        [sum(len(c.turns[0].text) for c in drawn) for drawn in (early, late)],
    )
    assert turns[0] < 0.75 * turns[1]
    assert characters[0] < 0.75 * characters[1]


def test_the_same_randomness_draws_the_same_conversations():
    assert conversations(20) == conversations(20)


def test_the_look_up_is_learned_from_other_rules_and_small_lessons_keep_to_the_smallest_size():
    recipe = {"lookup_rules": ((Rule.ANY, 1.0),), "rules": ((Rule.HIGHEST, 1.0),)}
    even = [len(set(c.turns[0].probabilities)) == 1 for c in conversations(20, **recipe)]
    assert not any(even)
    lesson = Lesson(lookup=True, small=True)
    drawn = conversations(50, lesson, **recipe, sizes=(8, 16), other_sizes=0.0)
    assert all(len(set(turn.probabilities)) == 1 for c in drawn for turn in c.turns)
    assert max(max(turn.ids) for c in drawn for turn in c.turns) < 8
    later = conversations(50, sizes=(8, 16), other_sizes=0.0)
    assert max(max(turn.ids) for c in later for turn in c.turns) == 15
