"""Warm-start data: chats in which one hidden rule picks an option by a labelled number.

Invariants:
* nothing of a game's dynamics or strategy is in here: numbers and option lists are random, and
  what is picked has no consequence but that it may leave the list;
* a conversation obeys one rule, which its text never states; averaged over conversations the
  answers favour no policy, but giving them takes the circuits that a policy is made of;
* first lessons are short and mostly follow the nearest option, because the look-up of a labelled
  number forms only where the answer depends on it strongly. The mixture comes after it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from miner.tiny_model.rules import Rule, answer_probabilities
from miner.tiny_model.sheets import Kind, Layout, Line, free_layout, full_layout, short_layout

SYSTEM_TEXTS = (
    "You read a short sheet of labelled numbers and choose one of the listed options.\n"
    "Answer with its number and nothing else.",
    "A sheet follows. Pick one line of the list.\nOnly the number of the line counts.",
    "Answer each sheet with one of the numbers offered.",
)


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """Distribution of the conversations.

    Attributes:
        sizes: largest number of a conversation, drawn from these.
        other_sizes: share of conversations with any largest number from 4 up instead.
        anywhere: share of conversations whose numbers are any of those up to the largest of `sizes`
            instead of the first ones: larger numbers are learned in short conversations too.
        max_turns: sheets per conversation at most.
        lookup_rules: weights of the rules while the look-up is learned, see the module.
        rules: weights of the rules after it.
        sharpness: inverse temperatures of the rules, drawn per conversation.
        full: share of the other sheets that have all kinds of lines.
        follow_pair: share of conversations with a pair that follow one of its numbers.
        shrinking: share of conversations in which a picked option leaves the list.
        noise: share of conversations that begin with random tokens in place of a system text,
            so that a prompt with prose never seen before changes nothing.
        noise_tokens: most of them; one time in ten up to eight times as many.
    """

    sizes: tuple[int, ...] = (8,)
    other_sizes: float = 0.3
    anywhere: float = 0.0
    max_turns: int = 15
    lookup_rules: tuple[tuple[Rule, float], ...] = ((Rule.NEAREST, 0.85), (Rule.ANY, 0.15))
    rules: tuple[tuple[Rule, float], ...] = (
        (Rule.NEAREST, 0.3),
        (Rule.FARTHEST, 0.2),
        (Rule.ANY, 0.3),
        (Rule.HIGHEST, 0.1),
        (Rule.LOWEST, 0.1),
    )
    sharpness: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0)
    full: float = 0.9
    follow_pair: float = 0.1
    shrinking: float = 0.7
    noise: float = 0.5
    noise_tokens: int = 40


@dataclass(frozen=True, slots=True)
class Lesson:
    """A point of the curriculum; the defaults are what the warm start ends with.

    Attributes:
        lookup: the look-up is learned, by its own rules.
        short: share of conversations with a short sheet.
        small: the smallest size is the only one.
    """

    lookup: bool = False
    short: float = 0.0
    small: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A sheet, the ids that may be answered, how probable each is, and the one that was drawn."""

    text: str
    ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat to learn from.

    Attributes:
        system: the system text, empty for none.
        noise_tokens: number of random tokens that replace the system text; then it is empty.
        turns: sheets and answers, at least one.
    """

    system: str
    noise_tokens: int
    turns: tuple[Turn, ...]


LAST_LESSON = Lesson()


def draw_conversation(
    rng: random.Random, recipe: DataRecipe, lesson: Lesson = LAST_LESSON
) -> Conversation:
    """A conversation of a lesson, from no other randomness than `rng`."""
    short = rng.random() < lesson.short
    weighted = recipe.lookup_rules if lesson.lookup else recipe.rules
    rule = rng.choices([r for r, _ in weighted], [w for _, w in weighted])[0]
    layout = _draw_layout(rng, recipe, short)
    sizes = (min(recipe.sizes),) if lesson.small else recipe.sizes
    largest = rng.choice(sizes)
    if rng.random() < recipe.other_sizes:
        largest = rng.randint(4, max(sizes))
    max_turns = 3 if short else recipe.max_turns
    turns = _draw_turns(rng, recipe, layout, rule, largest, max_turns)
    if rng.random() < recipe.noise:
        longest = recipe.noise_tokens * (8 if rng.random() < 0.1 else 1)
        return Conversation("", rng.randint(1, max(1, longest)), turns)
    return Conversation(rng.choice((*SYSTEM_TEXTS, "")), 0, turns)


def _draw_layout(rng: random.Random, recipe: DataRecipe, short: bool) -> Layout:
    if short:
        return short_layout(rng)
    return full_layout(rng) if rng.random() < recipe.full else free_layout(rng)


def _draw_turns(
    rng: random.Random,
    recipe: DataRecipe,
    layout: Layout,
    rule: Rule,
    largest: int,
    max_turns: int,
) -> tuple[Turn, ...]:
    numbers = list(range(1, largest + 1))
    if recipe.anywhere and rng.random() < recipe.anywhere:
        numbers = sorted(rng.sample(range(1, max(recipe.sizes) + 1), largest))
    sheet = _Sheet(rng, recipe, layout, numbers)
    sharpness = rng.choice(recipe.sharpness)
    count = min(largest - 1 if rng.random() < 0.5 else rng.randint(2, largest - 1), max_turns)
    turns: list[Turn] = []
    while len(turns) < count and len(sheet.options) > 1:
        values, target = sheet.next_values()
        probabilities = answer_probabilities(rule, sharpness, target, sheet.options)
        answer = rng.choices(sheet.options, probabilities)[0]
        text = layout.render(values, sheet.options, first=not turns)
        ids = tuple(option - 1 for option in sheet.options)
        turns.append(Turn(text, ids, tuple(probabilities), answer - 1))
        sheet.pick(answer)
    return tuple(turns)


class _Sheet:
    """The numbers of a conversation's sheets, one after another."""

    def __init__(
        self, rng: random.Random, recipe: DataRecipe, layout: Layout, numbers: list[int]
    ) -> None:
        self._rng, self._lines = rng, layout.lines
        self._all = numbers
        self._shrinking = rng.random() < recipe.shrinking
        self.options = list(self._all) if rng.random() < 0.7 else self._subset(2)
        self._shown = 0
        self._pair = [0, 0]
        self._unused = rng.sample(self._all, len(numbers))
        pairs = [i for i, line in enumerate(self._lines) if line.kind is Kind.PAIR]
        singles = [i for i, line in enumerate(self._lines) if line.kind is Kind.NUMBER]
        follow_pair = bool(pairs) and rng.random() < recipe.follow_pair
        self._followed = rng.choice(pairs if follow_pair else singles)
        self._followed_side = rng.randrange(2)

    def next_values(self) -> tuple[list[str], int]:
        """Contents of each line, and the number that the rule looks at."""
        values = [self._value(i, line) for i, line in enumerate(self._lines)]
        self._shown += 1
        target = values[self._followed]
        return values, int(target.split("/")[self._followed_side] if "/" in target else target)

    def pick(self, option: int) -> None:
        """Continue with the next sheet's options."""
        if self._shrinking:
            self.options.remove(option)
        else:
            self.options = self._subset(2)

    def _value(self, index: int, line: Line) -> str:
        rng = self._rng
        if line.kind is Kind.NUMBER:
            # Where options do not come back, neither does the number to follow.
            once = index == self._followed and self._shrinking
            return str(self._unused.pop() if once else rng.choice(self._all))
        if line.kind is Kind.DIGITS:
            return "".join(map(str, self._subset(1)))
        if line.kind is Kind.PAIR:
            if self._shown:
                self._pair[rng.randrange(2)] += rng.choice(self._all)
            return f"{self._pair[0]}/{self._pair[1]}"
        if line.kind is Kind.OUTCOMES:
            return " ".join(rng.choice(("0", "1", "0", "1", "-3")) for _ in range(self._shown))
        if line.kind is Kind.REMARK:
            return ""
        return _spaced(self.options if line.kind is Kind.OPTIONS_LIST else self._subset(0))

    def _subset(self, least: int) -> list[int]:
        return sorted(self._rng.sample(self._all, self._rng.randint(least, len(self._all))))


def _spaced(numbers: Sequence[int]) -> str:
    return "".join(f"{number} " for number in numbers)
