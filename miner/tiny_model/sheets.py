"""Number-following conversations: sheets of labelled numbers, then options.

A sheet is a heading, lines of labelled numbers in any order, and a list `id -> label number`. All
labels come from one pool. The labels of the graded game are members of it like any other (their
characters are the server's wire format); no conversation shows a position of the game.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

HEADINGS = ("Status:", "Board:", "Here is the page:", "Report:", "Current State:")
NUMBERS = (
    "Target value:",
    "Marker:",
    "Shelf:",
    "Gate:",
    "Current point card:",
)
DIGITS = ("Code:", "Barcode:", "Serial:", "Fingerprint:", "Remaining Point Cards:")
LISTS = (
    "On the shelf:",
    "Seen so far:",
    "Basket:",
    "Left lane:",
    "Right lane:",
    "Notes:",
    "History:",
    "Open seats:",
    "P0 hand:",
    "P1 hand:",
    "Win sequence:",
)
REMARKS = (
    "(Notes: numbers may repeat)",
    "(All values are whole numbers)",
    "(History: oldest first)",
    "(Win sequence: 1=player 1 won, 0=player 0 won, negative=tie)",
)
PAIRS = (
    ("Red side:", " goals, Blue side:", " goals "),
    ("Team A:", " marks, Team B:", " marks "),
    ("North:", " boxes, South:", " boxes "),
    ("Player 0:", " points, Player 1:", " points "),
)
IDENTITIES = (
    "",
    "You are the clerk.",
    "You are at desk B.",
    "It is your turn.",
    "You are Player 0.",
    "You are Player 1.",
)
OPTION_HEADINGS = ("Options:", "Possible answers:", "Choose from:", "Legal Actions:")
OPTIONS = ("Take:", "Lot:", "Box:", "Door:", "[P0]Bid:", "[P1]Bid:")
CLOSINGS = ("Answer (number only):", "Your pick:", "Reply with one id:", "Your choice (ID only):")


class Kind(Enum):
    """Contents of a line of a sheet."""

    NUMBER = auto()
    DIGITS = auto()
    LIST = auto()
    OPTIONS_LIST = auto()
    OUTCOMES = auto()
    REMARK = auto()
    PAIR = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a sheet: its kind, its label and, for a pair, what stands between and after."""

    kind: Kind
    label: str
    between: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The fixed text of a conversation's sheets. One of `lines` is a NUMBER line."""

    heading: str
    lines: tuple[Line, ...]
    identity: str
    option_heading: str
    option_label: str
    closing: str

    def render(self, values: Sequence[str], options: Sequence[int], first: bool) -> str:
        """The text of one sheet.

        Args:
            values: text after each line's label; for a pair both, separated by "/".
            options: the numbers to choose from; the id of a number is that number minus one.
            first: true if this is the conversation's first sheet.
        """
        lines = [self.heading]
        for line, value in zip(self.lines, values, strict=True):
            if line.kind is Kind.PAIR:
                left, right = value.split("/")
                lines.append(f"{line.label} {left}{line.between} {right}{line.after}")
            elif line.kind is Kind.REMARK:
                lines.append(line.label if first else f"{line.label} ")
            else:
                lines.append(f"{line.label} {value}")
        identity = f"\n\n\n{self.identity}" if self.identity else ""
        listed = "".join(f"{option - 1} -> {self.option_label} {option}\n" for option in options)
        return f"{chr(10).join(lines)}{identity}\n{self.option_heading}\n{listed}\n{self.closing}"


def short_layout(rng: random.Random) -> Layout:
    """One labelled number above the options."""
    return _layout(rng, [Line(Kind.NUMBER, rng.choice(NUMBERS))])


def free_layout(rng: random.Random) -> Layout:
    """One to three labelled numbers and lines of other kinds, in any order."""
    lines = [Line(Kind.NUMBER, label) for label in rng.sample(NUMBERS, rng.choice((1, 1, 2, 3)))]
    lines += _lists(rng, rng.choice((0, 1, 2, 3)), mirror=rng.random() < 0.5)
    for extra in (_digits, _pair, _remark):
        if rng.random() < 1 / 3:
            lines.append(extra(rng))
    rng.shuffle(lines)
    return _layout(rng, lines)


def full_layout(rng: random.Random) -> Layout:
    """All kinds of lines in the one order that the graded prompt has too, labels from the pool."""
    lines = [Line(Kind.NUMBER, rng.choice(NUMBERS)), _digits(rng)]
    lines += _lists(rng, 3, mirror=True)
    lines += [_remark(rng), _pair(rng)]
    return _layout(rng, lines)


def _layout(rng: random.Random, lines: Sequence[Line]) -> Layout:
    return Layout(
        heading=rng.choice(HEADINGS),
        lines=tuple(lines),
        identity=rng.choice(IDENTITIES),
        option_heading=rng.choice(OPTION_HEADINGS),
        option_label=rng.choice(OPTIONS),
        closing=rng.choice(CLOSINGS),
    )


def _lists(rng: random.Random, count: int, mirror: bool) -> list[Line]:
    """Lines with lists; with `mirror` one of them repeats the options."""
    lines = [
        Line(Kind.OUTCOMES if label == LISTS[-1] else Kind.LIST, label)
        for label in rng.sample(LISTS, count)
    ]
    plain = [i for i, line in enumerate(lines) if line.kind is Kind.LIST]
    if mirror and plain:
        chosen = rng.choice(plain)
        lines[chosen] = replace(lines[chosen], kind=Kind.OPTIONS_LIST)
    return lines


def _digits(rng: random.Random) -> Line:
    return Line(Kind.DIGITS, rng.choice(DIGITS))


def _remark(rng: random.Random) -> Line:
    return Line(Kind.REMARK, rng.choice(REMARKS))


def _pair(rng: random.Random) -> Line:
    label, between, after = rng.choice(PAIRS)
    return Line(Kind.PAIR, label, between, after)
