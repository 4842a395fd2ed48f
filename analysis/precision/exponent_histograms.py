"""Histograms of gradients' exponents, with what a format loses marked.

As figures 2b and 3 of Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.figure_style import COLOURS, NEUTRAL, PAGE_WIDTH, new_figure
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.gradient_exponents import LOWEST, GradientExponents
from qpd.runs.counted_gradients import PhaseGradients

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

KINDS = ("weights", "activations")


def exponent_table(counted: Mapping[str, Mapping[str, PhaseGradients]]) -> DataFrame:
    """Return the counts behind the figures, a row for each filled bin.

    `counted` is by run and phase. `exponent` is floor(log2 |g|), NaN for zeros; `where` as
    `GradientExponents.shares` has it, in `format`.
    """
    import pandas as pd

    rows: list[tuple[str, str, str, str, float, str, int]] = []
    each_phase = [(run, *its) for run, phases in counted.items() for its in phases.items()]
    for run, phase, found in each_phase:
        for kind in KINDS:
            total = found.total(kind)
            rows += [
                (run, phase, kind, str(found.form), exponent, place_of(exponent, found.form), count)
                for exponent, count in enumerate(total.counts, start=LOWEST)
                if count
            ]
            about = (run, phase, kind, str(found.form), np.nan)
            rows += [(*about, "zero", total.zeros)] if total.zeros else []
            rows += [(*about, "overflow", total.not_finite)] if total.not_finite else []
    names = ["run", "phase", "gradients", "format", "exponent", "where", "count"]
    return pd.DataFrame(rows, columns=names)


def place_of(exponent: int, form: FloatFormat) -> str:
    """Return where numbers of this exponent fall: lost, subnormal, normal or overflow."""
    if exponent > form.max_exponent:
        return "overflow"
    if exponent >= form.min_exponent:
        return "normal"
    return "subnormal" if exponent >= form.min_exponent - form.mantissa else "lost"


def draw_exponents(ax: Axes, found: GradientExponents, form: FloatFormat) -> None:
    """Draw the shares of all numbers by exponent, coloured by where they fall in `form`.

    Exact zeros stand apart at the left; the title names the loss scale that would fit.
    """
    filled = [k + LOWEST for k, count in enumerate(found.counts) if count]
    low, high = (filled[0], filled[-1]) if filled else (form.min_exponent, 0)
    low = min(low, form.min_exponent - form.mantissa) - 1
    total = max(found.total, 1)
    colours = {"lost": COLOURS[1], "subnormal": COLOURS[5], "normal": COLOURS[0]}
    colours["overflow"] = COLOURS[3]
    for where, colour in colours.items():
        mine = [k for k in filled if place_of(k, form) == where]
        heights = [100 * found.counts[k - LOWEST] / total for k in mine]
        share = 100 * found.shares(form)[where]
        # A bar of height 0 where there is none: the legend takes its colour from it.
        places, heights = mine or [low], heights or [0.0]
        label = f"{where} {share:.2g}%"
        ax.bar(places, heights, width=1.0, align="edge", color=colour, label=label)
    zeros = 100 * found.zeros / total
    ax.bar([low - 3], [zeros], width=2.0, align="edge", color=NEUTRAL, label=f"zero {zeros:.2g}%")
    for edge in (form.min_exponent - form.mantissa, form.min_exponent, form.max_exponent + 1):
        ax.axvline(edge, color=NEUTRAL, linewidth=0.6, linestyle=":")
    ax.set_xlim(low - 4, max(high, form.max_exponent) + 3)
    ax.set(xlabel="exponent, floor(log2 |g|)", ylabel="gradients (%)")
    scale = found.fitting_scale(form)
    ax.set_title(f"in {form}; S = 2^{int(np.log2(scale))} would fit", loc="left")
    ax.legend()


def exponent_figure(phases: Mapping[str, PhaseGradients]) -> Figure:
    """Draw the gradients by weights and by activations of each phase, a row a phase."""
    figure = new_figure(PAGE_WIDTH, 2.3 * len(phases))
    axes = figure.subplots(len(phases), 2, squeeze=False)
    for row, (phase, found) in zip(axes, phases.items(), strict=True):
        for ax, kind in zip(row, KINDS, strict=True):
            draw_exponents(ax, found.total(kind), found.form)
            ax.set_title(f"{phase}, by {kind}: {ax.get_title(loc='left')}", loc="left")
    return figure
