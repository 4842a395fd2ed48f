"""Figure style, and writing figures and tables to disk.

Widths are those of a two-column paper, with 8-point text at that size. The colours are Okabe and
Ito's, which colour-blind readers can tell apart; markers differ in shape as well.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.files.atomic import write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from pandas import DataFrame

COLUMN_WIDTH = 3.3  # inches: one column of a two-column page
PAGE_WIDTH = 6.9  # inches: both columns
# Okabe & Ito 2008, without yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
NEUTRAL = "#7F7F7F"  # reference lines: teachers, chance

_SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "qpd",  # the same figure is the same file
}


def as_label(name: str) -> str:
    """Return a name from a file or a folder as a label, in which `$` begins no formula."""
    return name.replace("$", r"\$")


def series_look(place: int) -> dict[str, Any]:
    """Return colour and marker of the series number `place`; of the first 49 no two look alike."""
    # There are as many markers as colours: both in step would begin anew together.
    marker = (place + place // len(COLOURS)) % len(MARKERS)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[marker]}


def error_lengths(mean: ArrayLike, low: ArrayLike, high: ArrayLike) -> np.ndarray:
    """Return what `Axes.errorbar` takes of means and their intervals: float64 `[2, n]`.

    matplotlib refuses negative lengths, which rounding gives where all games are equal.
    """
    around = [np.subtract(mean, low), np.subtract(high, mean)]
    return np.array([np.atleast_1d(each) for each in around], dtype=float).clip(min=0.0)


def tilt_names(axes: Axes, degrees: float) -> None:
    """Turn the names along the x axis by `degrees`; each ends below its own tick."""
    axes.tick_params(axis="x", labelrotation=degrees)
    for label in axes.get_xticklabels():
        label.set(horizontalalignment="right", rotation_mode="anchor")


def say_below(figure: Figure, text: str) -> None:
    """Write what marks, bars and bands mean under a figure's panels, over its legend if it has one.

    The layout leaves no room for a label beside a legend outside of the panels.
    """
    if figure.legends:
        figure.legends[0].set_title(text)
        figure.legends[0].get_title().set_fontsize(6)
    else:
        figure.supxlabel(text, fontsize=6)


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw everything in this block for a paper, on a canvas that needs no screen."""
    # matplotlib is imported inside functions throughout: commands without `-o` start faster and
    # work without it.
    import matplotlib
    from cycler import cycler

    settings: dict[Any, Any] = {**_SETTINGS, "axes.prop_cycle": cycler(color=COLOURS)}
    # rc_context restores the caller's settings: a notebook's own style survives one of our
    # figures.
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float = COLUMN_WIDTH, height: float = 2.2) -> Figure:
    """Return an empty figure of `width` x `height` inches; no global state, nothing to close."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not pyplot: it keeps every figure alive until closed, and may pick a backend that wants a
    # screen.
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `folder`; call it inside `paper_style()`.

    Text beyond the figure's edges widens it. Both files are byte-identical whenever the figure is.
    Returns the paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    # The only metadata that change from one machine or minute to the next: matplotlib's version,
    # the date.
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        data = io.BytesIO()
        # Names from files may be longer than any layout has room for.
        figure.savefig(data, format=suffix, metadata=metadata, bbox_inches="tight", pad_inches=0.05)
        path = folder / f"{name}.{suffix}"
        write_bytes(path, data.getvalue())
        written.append(path)
    return written


def save_tables(tables: Mapping[str, DataFrame], folder: Path) -> list[Path]:
    """Write each table as `name`.csv into `folder`, without its index; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        # pandas ends lines with os.linesep otherwise, and the bytes would differ by platform.
        write_text(path, table.to_csv(index=False, lineterminator="\n"))
        written.append(path)
    return written
