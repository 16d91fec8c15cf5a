"""The rules that a number-following conversation can obey, as distributions over its options."""

import math
from collections.abc import Sequence
from enum import StrEnum


class Rule(StrEnum):
    """Rules by which the answers of a conversation are chosen."""

    NEAREST = "nearest"
    FARTHEST = "farthest"
    HIGHEST = "highest"
    LOWEST = "lowest"
    ANY = "any"


def answer_probabilities(
    rule: Rule, sharpness: float, target: int, options: Sequence[int]
) -> list[float]:
    """Probabilities of the options under a rule.

    Args:
        rule: the rule of the conversation.
        sharpness: inverse temperature; the larger, the more deterministic.
        target: the labelled number that the rule looks at.
        options: numbers to choose from, at least one.

    Returns: one probability per option, in their order; the sum is 1.
    """
    scores = [sharpness * _preference(rule, option, target) for option in options]
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _preference(rule: Rule, option: int, target: int) -> int:
    if rule is Rule.NEAREST:
        return -abs(option - target)
    if rule is Rule.FARTHEST:
        return abs(option - target)
    if rule is Rule.HIGHEST:
        return option
    return -option if rule is Rule.LOWEST else 0
