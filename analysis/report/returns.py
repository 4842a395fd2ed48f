"""Report section: the distribution of single games' returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.figure_style import COLOURS, NEUTRAL, error_lengths
from qpd.analysis.report.blocks import Picture, Pictures, Section, Table
from qpd.analysis.report.figure_uri import figure_uri
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.run_table import LABELS
from qpd.evaluation.return_words import interval_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def returns_section(inputs: ReportInputs) -> Section:
    """Draw a dot per game, and the mean with its interval, for every evaluated policy."""
    title = "Returns, game by game"
    entries = inputs.summary["policies"]
    found = {name: entry["return"] for name, entry in entries.items() if "return" in entry}
    measured = {name: each for name, each in found.items() if each.get("returns")}
    if not measured:
        return Section("returns", title, left_out="No policy of this run has been evaluated yet.")
    uri = figure_uri(lambda figure: _draw(figure, measured), 0.75 + 0.42 * len(measured))
    alt = "Returns of single games. " + " ".join(
        f"{LABELS[name]}: mean {e['mean']:,.1f}, {interval_words(e['interval'], e['episodes'])}, "
        f"from {min(e['returns']):g} to {max(e['returns']):g}."
        for name, e in measured.items()
    )
    caption = (
        "A dot is a game; diamond and bar are the mean and its 95% bootstrap interval, which one "
        "game has not."
    )
    pictures = Pictures([Picture(uri, alt, caption)], _quantiles(measured))
    return Section("returns", title, [pictures])


def _quantiles(measured: dict[str, Any]) -> Table:
    rows = []
    for name, evaluation in measured.items():
        # Quantiles beside the picture: Atari returns cluster, and a mean alone hides two kinds of
        # game.
        games = np.quantile(evaluation["returns"], [0.0, 0.25, 0.5, 0.75, 1.0])
        rows.append([LABELS[name], *(f"{value:,.1f}" for value in games)])
    return Table(["policy", "worst", "25%", "median", "75%", "best"], rows)


def _draw(figure: Figure, measured: dict[str, Any]) -> None:
    ax = figure.add_subplot()
    rng = np.random.default_rng(0)
    for row, (name, evaluation) in enumerate(measured.items()):
        is_teacher = name.startswith("teacher")
        colour = NEUTRAL if is_teacher else COLOURS[0]
        games = np.asarray(evaluation["returns"], float)
        # Vertical jitter tells equal returns apart; seeded, so the same run draws the same page.
        heights = row + rng.uniform(-0.14, 0.34, len(games))
        ax.scatter(games, heights, s=7, color=colour, alpha=0.55, linewidths=0)
        low, high = evaluation["interval"] if len(games) > 1 else (np.nan, np.nan)
        mean = evaluation["mean"]
        ax.errorbar(
            mean,
            row - 0.3,
            xerr=error_lengths(mean, low, high),
            fmt="D",
            markersize=3.5,
            color="#000000",
            elinewidth=1.2,
            capsize=2,
        )
    ax.set_yticks(range(len(measured)), [LABELS[name] for name in measured])
    ax.set_ylim(len(measured) - 0.5, -0.6)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("return of a game")
