"""Small charts as SVG coordinates, for a page that draws them again with every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log10

MOST_POINTS = 240
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 200.0, 54.0, 10.0, 8.0, 22.0
"""Of every chart, in pixels; the width is the page's."""


@dataclass(frozen=True, slots=True)
class Point:
    """A mean with its interval."""

    x: float
    mean: float
    low: float
    high: float
    marked: bool


@dataclass(frozen=True)
class Chart:
    """A line, points with intervals, and horizontal lines with names.

    Args:
        line: (x, y) in ascending order of x.
        top: of the y axis, which begins at 0; None: a round number above the largest value.
        note: meaning of the values, in a sentence.
    """

    title: str
    line: Sequence[tuple[float, float]]
    points: Sequence[Point]
    references: Sequence[tuple[str, float]]
    top: float | None = None
    note: str = ""

    @cached_property
    def first_x(self) -> float:
        """Left end of the x axis."""
        return min([x for x, _ in self.line[:1]] + [p.x for p in self.points[:1]], default=0.0)

    @cached_property
    def last_x(self) -> float:
        """Right end of the x axis."""
        return max([x for x, _ in self.line] + [p.x for p in self.points] + [1.0])

    @cached_property
    def ceiling(self) -> float:
        """Upper end of the y axis."""
        largest = max([y for _, y in self.line], default=0.0)
        return self.top or _round_above(largest)

    def x(self, value: float, width: float) -> float:
        """Pixels from the left, in a chart of this width."""
        share = (value - self.first_x) / max(1.0, self.last_x - self.first_x)
        return round(LEFT + (width - LEFT - RIGHT) * share, 1)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        share = min(1.0, max(0.0, value / self.ceiling))
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    def path(self, width: float) -> str:
        """The line's points for a `<polyline>`."""
        return " ".join(f"{self.x(x, width)},{self.y(y)}" for x, y in self.line)


def _round_above(value: float) -> float:
    """The next of 1, 2, 3, 4, 6 and 8 times a power of ten: half of it is short to write, too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 3, 4, 6, 8, 10) if step * power >= value)


def binned(values: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most `MOST_POINTS` means of neighbours."""
    size = -(-len(values) // MOST_POINTS) or 1
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    return [(sum(x for x, _ in p) / len(p), sum(y for _, y in p) / len(p)) for p in parts]
