"""Pictures of learning and of evaluations, with intervals wherever a mean is shown."""

from collections.abc import Collection, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from miner.config.contract import game_title
from miner.evaluation.statistics import Estimate
from miner.games import RANDOM, ReferenceScore
from miner.reporting.records import HALVINGS, TARGET_KL, EvaluationRecord, StepRecord
from miner.reporting.style import BLUE, INK, MARKERS, MUTED, ORANGE, SERIES, new_figure, styled
from miner.reporting.tables import deck_sizes, known_scores

WIDE, NARROW = (9.2, 4.8), (4.6, 4.8)
"""Sizes in inches: for a page, and for one on a telephone."""

_SMOOTHING_SPAN = 10
_LABEL_DISTANCE = 0.035
_LEGEND_ROW = 0.22  # inches
_DISTANCES_HEIGHT = 1.4  # inches
_EXPECTED = ", expected"


def learning_curve(
    steps: Sequence[StepRecord],
    evaluations: Sequence[EvaluationRecord],
    *,
    sizes: Collection[int] = (),
    size: tuple[float, float] = WIDE,
) -> Figure:
    """Sampled score of each training step, held-out evaluations with intervals, references.

    Args:
        steps: training steps in ascending order.
        evaluations: those with a step and a score are drawn, others are passed over.
        sizes: deck sizes trained on, for the lines of known scores (empty: all); games without
            known scores have no such lines.
        size: width and height in inches.
    """
    with styled():
        figure = new_figure(*size)
        distances = [(r.step, r.metrics[TARGET_KL]) for r in steps if TARGET_KL in r.metrics]
        if distances:
            axes, lowest = _with_distances(figure, distances)
        else:
            axes = lowest = figure.add_subplot()
        scored = [record for record in steps if record.score is not None]
        if scored:
            x = np.array([record.step for record in scored])
            y = np.array([record.score for record in scored], dtype=float)
            axes.plot(x, y, color=BLUE, alpha=0.28, linewidth=1)
            axes.plot(
                x,
                _smoothed(y),
                color=BLUE,
                linewidth=2,
                label=f"training, sampled (moving average of {_SMOOTHING_SPAN} steps)",
            )
        drawn = [(e.step, e.score) for e in evaluations if e.step is not None and e.score]
        if drawn:
            drawn.sort(key=lambda pair: pair[0])
            point_ranges(
                axes,
                [step for step, _ in drawn],
                [score for _, score in drawn],
                color=ORANGE,
                label="held-out (95% interval)",
                line=True,
            )
        published = [e for e in evaluations if e.published and e.step is not None and e.score]
        if published:
            _point_out(axes, max(published, key=lambda record: record.step or 0))
        _mark_reverts(axes, steps)
        last = max([r.step for r in steps] + [step for step, _ in drawn] + [1])
        axes.set_xlim(-0.015 * last, last * 1.015)
        _score_axis(axes)
        lowest.set_xlabel("training step")
        axes.set_title("Learning curve")
        _reference_lines(axes, known_scores(evaluations), sizes)
        if scored or drawn:
            _legend_below(figure, axes)
        return figure


def evaluation_figure(
    evaluations: Sequence[EvaluationRecord], *, size: tuple[float, float] = WIDE
) -> Figure:
    """Every evaluation's score overall, by deck size and by seat, of several games by game, side by
    side with intervals.

    Grey ticks show what match is expected to score. Evaluations without a score are left out.
    """
    shown = [record for record in evaluations if record.score]
    with styled():
        figure = new_figure(*size)
        sizes = deck_sizes(shown)
        games = sorted({game for record in shown for game in record.by_game})
        seats = sorted({seat for record in shown if not games for seat in record.by_seat})
        columns = ["all", *map(str, sizes), *(f"player {seat}" for seat in seats)]
        columns += [game_title(game) for game in games]
        gaps = [0.0] + [1.5 + i for i in range(len(sizes))]
        gaps += [gaps[-1] + 1.5 + i for i in range(len(seats or games))]
        axes = figure.add_subplot()
        width = 0.62 / max(1, len(shown))
        for index, record in enumerate(shown):
            parts = [record.score, *(record.by_deck_size.get(size) for size in sizes)]
            parts += [record.by_seat.get(seat) for seat in seats]
            parts += [record.games.get(game) for game in games]
            offset = (index - (len(shown) - 1) / 2) * width
            present = [(x + offset, part) for x, part in zip(gaps, parts, strict=True) if part]
            point_ranges(
                axes,
                [x for x, _ in present],
                [part for _, part in present],
                color=SERIES[index % len(SERIES)],
                marker=MARKERS[index % len(MARKERS)],
                label=_evaluation_label(record),
            )
        for reference in known_scores(shown):
            if reference.policy:
                _reference_ticks(axes, gaps, shown, reference)
        slanted = len(columns) > 4 and size[0] < WIDE[0]
        axes.set_xticks(gaps, columns, rotation=90 if slanted else 0)
        if len(columns) == 1:
            axes.set_xlim(-1, 1)  # a lone column in the middle, not torn apart
        axes.tick_params(axis="x", length=0)
        _score_axis(axes)
        groups = {"deck size": sizes, "seat": seats, "game": games}
        by = " and ".join(name for name, members in groups.items() if members)
        axes.set_title(f"Score{by and f' by {by}'}\n")
        if shown:
            axes.text(0, 1.03, _subtitle(shown), transform=axes.transAxes, color=MUTED)
        _column_headings(axes, gaps, len(sizes), len(seats))
        if shown:
            _legend_below(figure, axes)
        return figure


def _legend_below(figure: Figure, axes: Axes) -> None:
    """A legend in as many columns as fit, below axes that keep their height."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i].endswith(_EXPECTED))
    for columns in range(min(5, len(labels)), 0, -1):
        legend = figure.legend(
            [handles[i] for i in order],
            [labels[i] for i in order],
            loc="outside lower center",
            ncols=columns,
            columnspacing=1.6,
            handletextpad=0.5,
        )
        # A browser's letters may be a little wider than those measured here.
        if columns == 1 or legend.get_window_extent().width < 0.92 * figure.bbox.width:
            rows = -(-len(labels) // columns)
            figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * (rows - 1))
            return
        legend.remove()


def _subtitle(shown: Sequence[EvaluationRecord]) -> str:
    counts = sorted({record.score.n for record in shown if record.score})
    episodes = " to ".join(f"{n:,}" for n in ([counts[0], counts[-1]] if counts[1:] else counts))
    splits = {record.split.replace("_", "-") for record in shown}
    return f"{episodes} {' and '.join(sorted(splits))} episodes each, 95% intervals"


def _evaluation_label(record: EvaluationRecord) -> str:
    score = record.score
    return record.name if score is None else f"{record.name} {score.mean:.3f}"


def point_ranges(
    axes: Axes,
    x: Sequence[float],
    intervals: Sequence[Estimate],
    *,
    color: str,
    label: str,
    marker: str = "o",
    line: bool = False,
    lying: bool = False,
) -> None:
    """Means as markers with their intervals as bars, upright or lying."""
    means = np.array([interval.mean for interval in intervals])
    below = means - [interval.low for interval in intervals]
    above = [interval.high for interval in intervals] - means
    errors = np.clip([below, above], 0, None)
    axes.errorbar(
        *((means, x) if lying else (x, means)),
        **({"xerr": errors} if lying else {"yerr": errors}),
        color=color,
        marker=marker,
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=1.6,
        capsize=3,
        linestyle="-" if line else "none",
        linewidth=1.2,
        label=label,
        zorder=3,
    )


def _with_distances(figure: Figure, distances: Sequence[tuple[int, float]]) -> tuple[Axes, Axes]:
    """Axes for scores, and low ones below them with the policy's distance to its targets."""
    figure.set_figheight(figure.get_figheight() + _DISTANCES_HEIGHT)
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    values = np.array(distances, dtype=float)
    below.plot(values[:, 0], values[:, 1], color=BLUE, linewidth=1)
    below.set_yscale("log")  # a base that knows no form begins a hundred times as far away
    below.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_formatter("")
    below.set_ylabel("nats to targets")
    below.grid(axis="y")
    return above, below


def _point_out(axes: Axes, record: EvaluationRecord) -> None:
    assert record.score is not None
    assert record.step is not None
    high = record.score.mean > 0.5
    axes.annotate(
        "published model",
        (record.step, record.score.mean),
        xytext=(0.98, 0.12 if high else 0.72),
        textcoords="axes fraction",
        ha="right",
        va="center",
        color=INK,
        arrowprops={"arrowstyle": "->", "color": INK, "shrinkB": 7},
        zorder=4,
    )


def _mark_reverts(axes: Axes, steps: Sequence[StepRecord]) -> None:
    """Marks where training reverted to better weights: before the first step of each lower rate."""
    halvings = 0.0
    label: str | None = "back to the best weights, half the learning rate"
    for record in steps:
        now = record.metrics.get(HALVINGS, halvings)
        if now > halvings:
            axes.axvline(record.step - 0.5, color=INK, linestyle=":", linewidth=1.2, label=label)
            label = None
        halvings = now


def _score_axis(axes: Axes) -> None:
    axes.set_ylim(-0.02, 1.02)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_ylabel("score (1 is best)")
    axes.grid(axis="y")


def _reference_lines(
    axes: Axes, references: Sequence[ReferenceScore], sizes: Collection[int]
) -> None:
    """Grey lines of known scores, labelled on the right; close ones share a label."""
    groups: list[tuple[float, list[str]]] = []
    for reference in references:
        value = reference.mean(sizes)
        axes.axhline(value, color=MUTED, linewidth=0.9, zorder=1)
        text = f"{reference.name} {value:.{2 if reference.name == RANDOM else 3}f}"
        if groups and value - groups[-1][0] < _LABEL_DISTANCE:
            groups[-1][1].insert(0, text)
        else:
            groups.append((value, [text]))
    for value, texts in groups:
        axes.annotate(
            "\n".join(["expected", *texts]),
            (1, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=MUTED,
            annotation_clip=False,
        )


def _reference_ticks(
    axes: Axes,
    x: Sequence[float],
    shown: Sequence[EvaluationRecord],
    known: ReferenceScore,
) -> None:
    played = {size for record in shown for size in record.by_deck_size}
    values = [known.mean(played), *(known.by_deck_size[size] for size in deck_sizes(shown))]
    axes.hlines(
        values,
        [centre - 0.4 for centre in x[: len(values)]],
        [centre + 0.4 for centre in x[: len(values)]],
        color=MUTED,
        linewidth=1.4,
        label=f"{known.name}{_EXPECTED}",
        zorder=2,
    )


def _column_headings(axes: Axes, x: Sequence[float], sizes: int, seats: int) -> None:
    groups = {"deck size": x[1 : 1 + sizes], "seat": x[1 + sizes : 1 + sizes + seats]}
    for text, members in groups.items():
        if members:
            axes.annotate(
                text,
                (sum(members) / len(members), 0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, -30),
                textcoords="offset points",
                ha="center",
                color=INK,
                annotation_clip=False,
            )


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential moving average with bias correction, over about `_SMOOTHING_SPAN` values."""
    keep = 1 - 2 / (_SMOOTHING_SPAN + 1)
    total = weight = 0.0
    smooth = np.empty_like(values)
    for index, value in enumerate(values):
        total = keep * total + value
        weight = keep * weight + 1
        smooth[index] = total / weight
    return smooth
