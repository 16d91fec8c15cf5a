"""Style of every figure: colours that colour-blind readers can distinguish, one set of fonts.

Colours are those of Okabe and Ito (2008). Figures are built without pyplot, so no global state
and no display is touched, and a trainer can draw from any thread.
"""

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
AMBER = "#E69F00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
INK = "#222222"
MUTED = "#6B6B6B"
FAINT = "#E4E4E4"

SERIES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY)
MARKERS = ("o", "s", "D", "^", "v", "P")

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 10.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12.5,
    "axes.titlepad": 14.0,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "miner",
}


def styled() -> AbstractContextManager[None]:
    """Context in which figures are drawn and written."""
    return mpl.rc_context(_RC)


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of this size in inches; call it and draw inside `styled`."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG (160 dots per inch) or SVG, by the suffix; returns `path`."""
    with styled():
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)
    return path


def svg_of(figure: Figure) -> str:
    """The figure as an <svg> element to put into a page; its texts stay texts."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
