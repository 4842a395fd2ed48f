"""Figures of our returns and ratios beside the numbers that the paper states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.figure_style import (
    COLOURS,
    NEUTRAL,
    PAGE_WIDTH,
    error_lengths,
    new_figure,
)
from qpd.analysis.paper import published
from qpd.analysis.paper.claim_pairs import beside_teacher
from qpd.analysis.paper.claims import EIGHT_BIT_STUDENTS, FLOAT_STUDENTS, LARGE_BOUND, LARGE_SIZES
from qpd.analysis.paper.comparison import shown_students
from qpd.analysis.paper.results import ClaimResult
from qpd.analysis.paper.tables import verdict_text
from qpd.analysis.paper.verdict import Estimate, Verdict, mean_of_ratios, mean_return
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.students import SIZE_GRID
from qpd.teachers.archive.agent_identity import algorithm_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPREAD = 0.7  # of the width of a size, shared by its students
_ROW = 0.2  # inches per claim
_WIDEST = 2.5  # the claims' axis ends at this ratio, whatever was measured
_THINNEST = 0.016  # width of the bar for a single number, which would be invisible at 0
_ARROW: dict[str, Any] = {
    "arrowstyle": "-|>",
    "color": NEUTRAL,
    "linewidth": 1.5,
    "shrinkA": 0,
    "shrinkB": 0,
}
_PAPER_TEACHER, _PAPER_FLOATS = "the paper's teacher", "the paper's fp32 students"
_PAPER_LARGE = f"the paper's best 8-bit students: above {LARGE_BOUND:g}"
_LEGEND = (
    "fp32", "fp32 without critic loss", "8-bit", "8-bit without critic loss", "teacher",
    "teacher, sharpened", _PAPER_TEACHER, _PAPER_FLOATS, _PAPER_LARGE,
)  # fmt: skip
_VERDICT_COLOURS = {
    Verdict.held: COLOURS[2],
    Verdict.failed: COLOURS[1],
    Verdict.undecided: COLOURS[0],
    Verdict.unmatched: NEUTRAL,
    Verdict.unmeasured: NEUTRAL,
}


def returns_figure(groups: Sequence[PolicyGroup]) -> Figure | None:
    """Draw returns by size (as Figure 6) and as a multiple of the teacher's (as Figure 7).

    One row of panels per algorithm; None if no student of the grid was evaluated.
    Use inside `paper_style()`.
    """
    students = shown_students(groups)
    algorithms = list(dict.fromkeys(group.teacher for group in students))
    if not algorithms:
        return None
    figure = new_figure(PAGE_WIDTH, 2.1 * len(algorithms) + 0.4)
    panels = figure.subplots(len(algorithms), 2, squeeze=False)
    for (returns, shares), algorithm in zip(panels, algorithms, strict=True):
        mine = [group for group in students if group.teacher == algorithm]
        teachers = [g for g in groups if g.policy in TEACHERS and g.teacher == algorithm]
        _draw_returns(returns, mine, teachers)
        _draw_shares(shares, mine, teachers)
    # One legend for all panels, in a fixed order, each label once: panels differ in what they
    # hold.
    found = [panel.get_legend_handles_labels() for panel in panels.flat]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    names = [name for name in _LEGEND if name in handles]
    figure.legend([handles[name] for name in names], names, ncols=3, loc="outside lower center")
    return figure


def claims_figure(results: Sequence[ClaimResult]) -> Figure:
    """Draw each claim's ratio with its interval, the paper's range, the bound and the verdict.

    Use inside `paper_style()`.
    """
    # More room for a second line of text.
    heights = [1.0 + 0.7 * _row_name(result).count("\n") for result in results]
    places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    figure = new_figure(PAGE_WIDTH, _ROW * sum(heights) + 0.75)
    axes = figure.subplots()
    for result, place in zip(results, places, strict=True):
        _draw_claim(axes, result, place)
    # Empty artists make the legend: in the rows colours stand for verdicts, which the legend's
    # must not.
    axes.plot([], [], color=NEUTRAL, linewidth=6, alpha=0.4, label="the paper's number")
    axes.plot([], [], "|", color="black", markersize=9, label="bound of the claim")
    axes.errorbar([], [], xerr=[], fmt="o", color=COLOURS[6], label="ours, 95% interval")
    axes.set_yticks(places, [_row_name(result) for result in results])
    axes.set_ylim(sum(heights), 0.0)
    axes.set_xlim(0.0, min(max(2.0, axes.get_xlim()[1]), _WIDEST))
    axes.set_xlabel("ratio of mean returns")
    axes.grid(False, axis="y")
    figure.legend(ncols=3, loc="outside lower center")
    return figure


def _draw_claim(axes: Axes, result: ClaimResult, place: float) -> None:
    """Draw one row at `place`."""
    claim, colour = result.claim, _VERDICT_COLOURS[result.verdict]
    low, high = claim.number.low, claim.number.high
    if low is not None and high is not None:
        wide = max(high - low, _THINNEST)
        middle = (low + high) / 2
        axes.barh(place, wide, 0.4, middle - wide / 2, color=NEUTRAL, alpha=0.4)
    elif low is not None:
        axes.annotate("", (low + 0.12, place), (low, place), arrowprops=_ARROW, zorder=0)
    axes.plot([claim.bound], [place], "|", color="black", markersize=9)
    ratio = result.ratio
    if ratio is not None and ratio.value > _WIDEST:
        # An arrow at the edge, the number, and the visible part of the bar.
        axes.plot(0.985 * _WIDEST, place, ">", color=colour, markersize=4)
        axes.plot([min(ratio.low, _WIDEST), _WIDEST], [place] * 2, color=colour, linewidth=1)
        beside: dict[str, Any] = {"ha": "right", "va": "bottom"}  # above the line
        beside |= {"color": colour, "fontsize": 7}
        axes.text(0.96 * _WIDEST, place, f"{ratio.value:.3g}", **beside)
    elif ratio is not None and not np.isnan(ratio.value):
        around = error_lengths(ratio.value, ratio.low, ratio.high)
        style: dict[str, Any] = {"fmt": "o", "markersize": 3, "capsize": 2, "color": colour}
        axes.errorbar(ratio.value, place, xerr=around, **style)
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
    where |= {"annotation_clip": False, "color": colour, "fontsize": 7}
    axes.annotate(verdict_text(result), (1.01, place), **where)


def _row_name(result: ClaimResult) -> str:
    """Return the claim; of one about every student, of how many the drawn one decides."""
    number = len(result.judged or result.comparisons)
    if result.claim.scope == "mean" or number < 2:
        return result.claim.text
    return f"{result.claim.text}\n(the deciding one of {number})"


def _draw_returns(
    axes: Axes, students: Sequence[PolicyGroup], teachers: Sequence[PolicyGroup]
) -> None:
    sizes, algorithm = _sizes(students), students[0].teacher
    _draw_students(axes, students, sizes, [mean_return(_scores(group)) for group in students])
    played = [group for group in teachers if group.num_runs]
    for group, x in zip(played, len(sizes) + _spread(len(played), 0.3), strict=True):
        sharpened = group.policy == "teacher_sharpened"
        name = "teacher, sharpened" if sharpened else "teacher"
        found = mean_return(_scores(group))
        _draw_point(axes, x, found, "*", COLOURS[6], not sharpened, name)
    if algorithm in published.TEACHER_RETURNS:
        number = published.TEACHER_RETURNS[algorithm]
        axes.axhline(number, color=NEUTRAL, linewidth=1, linestyle="--", label=_PAPER_TEACHER)
    large = [place for place, size in enumerate(sizes) if size in LARGE_SIZES]
    if large and algorithm in ("ppo", "a2c"):
        ends = [large[0] - 0.5, large[-1] + 0.5]
        axes.plot(ends, 2 * [LARGE_BOUND], color=NEUTRAL, linestyle=":", label=_PAPER_LARGE)
    axes.set_xticks(range(len(sizes) + 1), [*sizes, "teacher"])
    axes.set_xlim(-0.6, len(sizes) + 0.6)
    _finish(axes, "return", f"{algorithm_name(algorithm)} teacher: return (as Figure 6)")


def _draw_shares(
    axes: Axes, students: Sequence[PolicyGroup], teachers: Sequence[PolicyGroup]
) -> None:
    """Draw each student as a share of its teacher's return as imitated."""
    pairs = [
        pair
        for side in (FLOAT_STUDENTS, EIGHT_BIT_STUDENTS)
        for pair in beside_teacher([*students, *teachers], side, as_imitated=True).pairs
    ]
    sizes = _sizes(students)
    found = [mean_of_ratios([pair.scores]) for pair in pairs]
    _draw_students(axes, [pair.first for pair in pairs], sizes, found)
    low, high = published.FLOAT_ABOVE_TEACHER.low, published.FLOAT_ABOVE_TEACHER.high
    if low is not None and high is not None:
        axes.axhspan(low, high, color=NEUTRAL, alpha=0.2, linewidth=0, label=_PAPER_FLOATS)
    axes.axhline(1.0, color=NEUTRAL, linewidth=0.8)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    _finish(axes, "return / teacher's", "relative to the teacher as imitated (as Figure 7)")


def _finish(axes: Axes, quantity: str, title: str) -> None:
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.grid(False, axis="x")
    axes.set_xlabel("student")
    axes.set_ylabel(quantity)
    axes.set_title(title)


def _draw_students(
    axes: Axes,
    students: Sequence[PolicyGroup],
    sizes: Sequence[str],
    estimates: Sequence[Estimate],
) -> None:
    """Draw students, coloured by precision, hollow if trained without the critic's loss."""
    for group, x, found in zip(students, _places(students, sizes), estimates, strict=True):
        floats, alone = group.policy == "distilled", group.settings["distill.actor_weight"] == 1.0
        name = f"{'fp32' if floats else '8-bit'}{' without critic loss' if alone else ''}"
        colour, marker = (COLOURS[0], "o") if floats else (COLOURS[1], "s")
        _draw_point(axes, x, found, marker, colour, not alone, name)


def _draw_point(
    axes: Axes, x: float, found: Estimate, marker: str, colour: str, filled: bool, label: str
) -> None:
    around = error_lengths(found.value, found.low, found.high)
    axes.errorbar(
        x, found.value, around, marker=marker, linestyle="", color=colour,
        markerfacecolor=colour if filled else "white", markersize=7 if marker == "*" else 3.5,
        capsize=2, label=label,
    )  # fmt: skip


def _sizes(students: Sequence[PolicyGroup]) -> list[str]:
    """Return the grid's sizes that occur among `students`, in order."""
    return [size for size in SIZE_GRID if any(group.size == size for group in students)]


def _places(students: Sequence[PolicyGroup], sizes: Sequence[str]) -> list[float]:
    """Return each student's x; students of one size stand side by side."""
    places = []
    for group in students:
        mates = [mate for mate in students if mate.size == group.size]
        room = min(_SPREAD, 0.2 * (len(mates) - 1))
        # By identity: groups hold arrays, whose == is no truth value.
        turn = next(turn for turn, mate in enumerate(mates) if mate is group)
        places.append(sizes.index(group.size) + float(_spread(len(mates), room)[turn]))
    return places


def _spread(number: int, width: float) -> np.ndarray:
    """Return offsets `[number]` around 0 for things that share `width`."""
    return np.linspace(-width / 2, width / 2, number) if number > 1 else np.zeros(number)


def _scores(group: PolicyGroup) -> np.ndarray:
    assert group.scores is not None  # only evaluated groups are drawn
    return group.scores
