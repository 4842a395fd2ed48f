"""Report section: training curves from metrics.csv, epoch by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import COLOURS, NEUTRAL
from qpd.analysis.report.blocks import Picture, Pictures, Section
from qpd.analysis.report.figure_uri import figure_uri, plain_log_ticks
from qpd.analysis.report.inputs import ReportInputs
from qpd.runs.metrics_log import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = {"distill": "phase 1, fp32", "finetune": "phase 3, quantized"}
VALUES = (
    "loss", "validation_return", "validation_low", "validation_high", "validation_divergence",
)  # fmt: skip


@dataclass
class Curve:
    """One phase: `epochs`, continuing the count of the phase before, and a list per `VALUES`."""

    phase: str
    epochs: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in VALUES})

    def points(self, *names: str) -> list[tuple[float, ...]]:
        """Return (epoch, value, ...) wherever all of `names` were measured."""
        columns = zip(self.epochs, *(self.values[name] for name in names), strict=True)
        return [row for row in columns if all(map(math.isfinite, row))]


def read_curves(path: Path) -> list[Curve]:
    """Read the curves of a metrics.csv; none if there is no such file. Torn rows are skipped.

    Raises MetricsLogError if it is not a CSV file.
    """
    if not path.is_file():
        return []
    curves = {name: Curve(name) for name in PHASES}
    before = {"distill": 0, "finetune": 0}
    for row in read_metrics(path):
        curve = curves.get(row.get("phase", ""))
        if curve is None:
            continue
        # Phase 3 counts from 0 again; shifted, it continues phase 1's axis.
        if curve.phase == "distill":
            before["finetune"] = max(before["finetune"], int(row["epoch"]))
        curve.epochs.append(before[curve.phase] + int(row["epoch"]))
        for name in VALUES:
            curve.values[name].append(_number(row.get(name)))
    return [curve for curve in curves.values() if curve.epochs]


def _number(text: str | None) -> float:
    try:
        # Most epochs have no validation, and a killed run may leave a cell half written.
        return float(text or "nan")
    except ValueError:
        return math.nan


def training_section(inputs: ReportInputs) -> Section:
    """Draw loss, validation return and divergence over the epochs of phases 1 and 3."""
    curves = read_curves(inputs.run.metrics_file)
    if not curves:
        left_out = "This run holds no metrics.csv with epochs in it."
        return Section("training", "Training", left_out=left_out)
    return Section("training", "Training", [Pictures(_pictures(inputs, curves))])


def _pictures(inputs: ReportInputs, curves: list[Curve]) -> list[Picture]:
    pictures = []
    if any(curve.points("loss") for curve in curves):
        alt = "Loss by epoch. " + _ends(curves, "loss", "{:.3g}")
        caption = "Training loss, averaged over each epoch."
        uri = figure_uri(lambda figure: _draw_on_log_axis(figure, curves, "loss", "loss"))
        pictures.append(Picture(uri, alt, caption))
    if any(curve.points("validation_return") for curve in curves):
        teacher = inputs.summary["policies"]["teacher"].get("return")
        alt = "Validation return by epoch. " + _ends(curves, "validation_return", "{:.1f}")
        caption = (
            "Returns of the validation games, which are not the reported ones, with 95% "
            f"intervals. {_chosen(inputs)}"
        )
        uri = figure_uri(lambda figure: _draw_returns(figure, curves, teacher))
        pictures.append(Picture(uri, alt, caption))
    if any(curve.points("validation_divergence") for curve in curves):
        alt = "Divergence by epoch. " + _ends(curves, "validation_divergence", "{:.4f}")
        caption = (
            "Divergence of the student from its teacher, both as they act, on the states of the "
            "validation games, in nats."
        )
        uri = figure_uri(
            lambda figure: _draw_on_log_axis(figure, curves, "validation_divergence", "divergence")
        )
        pictures.append(Picture(uri, alt, caption))
    return pictures


def _chosen(inputs: ReportInputs) -> str:
    """Say by what the best epoch was chosen."""
    kept = "The epoch with the highest return is kept"
    if inputs.run.recipe.evaluation.select == "divergence":
        kept = "Of two epochs the one nearer to the teacher on the states of both's games is kept"
    return f"{kept}; in phase 3 that may be the student it began with."


def _ends(curves: list[Curve], name: str, form: str) -> str:
    sentences = []
    for curve in curves:
        points = curve.points(name)
        if points:
            first, last = form.format(points[0][1]), form.format(points[-1][1])
            sentences.append(f"{PHASES[curve.phase]}: from {first} to {last}.")
    return " ".join(sentences)


def _draw_on_log_axis(figure: Figure, curves: list[Curve], name: str, label: str) -> None:
    ax = figure.add_subplot()
    for colour, curve in zip(COLOURS, curves, strict=False):
        points = curve.points(name)
        if not points:
            continue
        # A curve of one epoch would be invisible without its mark.
        marker = "o" if len(points) < 12 else ""
        ax.plot(*zip(*points, strict=True), color=colour, marker=marker, label=PHASES[curve.phase])
    # Reward terms can make phase 3's loss negative, which a log axis would drop silently.
    if all(point[1] > 0 for curve in curves for point in curve.points(name)):
        ax.set_yscale("log")
        plain_log_ticks(ax.yaxis)
    ax.set_ylabel(label)
    _finish(ax, curves)


def _draw_returns(figure: Figure, curves: list[Curve], teacher: dict[str, Any] | None) -> None:
    ax = figure.add_subplot()
    if teacher is not None:
        ax.axhline(teacher["mean"], color=NEUTRAL, linestyle=":", label="teacher")
    for colour, curve in zip(COLOURS, curves, strict=False):
        points = curve.points("validation_return")
        if points:
            # Only validated epochs are joined by a line, however far apart they are.
            epochs, means = zip(*points, strict=True)
            ax.plot(epochs, means, color=colour, marker="o", label=PHASES[curve.phase])
        for epoch, low, high in curve.points("validation_low", "validation_high"):
            ax.plot([epoch, epoch], [low, high], color=colour, linewidth=2.4, alpha=0.35)
    ax.set_ylabel("validation return")
    _finish(ax, curves)


def _finish(ax: Axes, curves: list[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator

    if len(curves) > 1:
        ax.axvline(curves[0].epochs[-1] + 0.5, color=NEUTRAL, linewidth=0.6)
    ax.set_xlabel("epoch, phase 3 continuing the count" if len(curves) > 1 else "epoch")
    ax.set_xlim(0, curves[-1].epochs[-1] + 1)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ax.legend()
