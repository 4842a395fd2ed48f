"""Errors of the quantized weights by layer, one line per run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qpd.analysis.figure_style import COLOURS, MARKERS, PAGE_WIDTH, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def draw_errors(errors: DataFrame) -> Figure:
    """Draw a column per scheme: SQNR in dB above, the largest error in steps below.

    `errors` is that of `qpd.analysis.networks.weight_distributions.WeightTables`. Call it inside
    `paper_style()`.
    """
    schemes = list(dict.fromkeys(errors["scheme"]))
    runs = {run: Path(run).name for run in errors["run"]}
    figure = new_figure(PAGE_WIDTH, 3.6 + 0.15 * len(runs) / 4)
    axes = figure.subplots(2, len(schemes), squeeze=False, sharex="col")
    for (upper, lower), scheme in zip(axes.T, schemes, strict=True):
        # A column of its own for each scheme: DoReFa as written loses the layer's scale, and its
        # errors are of another order.
        mine = errors[errors["scheme"] == scheme]
        for place, (run, layers) in enumerate(mine.groupby("run", sort=False)):
            look = {
                "color": COLOURS[place % len(COLOURS)],
                "marker": MARKERS[place % len(MARKERS)],
                "linestyle": "-" if place < len(COLOURS) else "--",
            }
            upper.plot(layers["layer"], layers["sqnr_db"], label=runs[run], **look)
            lower.plot(layers["layer"], layers["max_error_steps"], **look)
        upper.set_title(scheme)
        lower.set_yscale("log")
    axes[0, 0].set_ylabel("SQNR (dB)")
    axes[1, 0].set_ylabel("largest error (steps)")
    entries = [ax.get_legend_handles_labels() for ax in axes[0]]
    handles, labels = ([item for entry in entries for item in entry[part]] for part in (0, 1))
    figure.legend(
        handles, labels, ncols=4, loc="outside lower center", fontsize=6, handlelength=3.5
    )
    return figure
