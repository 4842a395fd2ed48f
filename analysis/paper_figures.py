"""Our returns and ratios beside the paper's numbers, where it states any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis import paper_numbers as paper
from analysis.claim_pairs import beside_teacher
from analysis.figure_style import COLOURS, NEUTRAL, PAGE_WIDTH, new_figure
from analysis.paper_beside import shown_students
from analysis.paper_claims import EIGHT_BIT_STUDENTS, FLOAT_STUDENTS
from analysis.paper_results import ClaimResult
from analysis.paper_verdict import Estimate, Verdict, mean_of_ratios, mean_return
from analysis.plot_series import algorithm_name
from analysis.policy_groups import PolicyGroup
from analysis.policy_returns import TEACHERS
from students import SIZE_GRID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPREAD = 0.7  # of a size's width, shared by the students that stand in it
_ROW = 0.2  # inches a claim
_VERDICT_COLOURS = {
    Verdict.held: COLOURS[2],
    Verdict.failed: COLOURS[1],
    Verdict.undecided: COLOURS[0],
    Verdict.unmeasured: NEUTRAL,
}


def returns_figure(groups: Sequence[PolicyGroup]) -> Figure | None:
    """Return by size (as Figure 6) and as a multiple of the teacher's (as Figure 7).

    A row of panels for each teacher's algorithm; None where no student of the grid was evaluated.
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
    handles, labels = [], []
    for axes in panels.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, ncols=3, loc="outside lower center")
    return figure


def claims_figure(results: Sequence[ClaimResult]) -> Figure:
    """The ratio of each claim with its interval, the paper's range, the bound and the verdict.

    Use inside `paper_style()`.
    """
    figure = new_figure(PAGE_WIDTH, _ROW * len(results) + 0.75)
    axes = figure.subplots()
    for place, result in enumerate(results):
        _draw_claim(axes, result, place)
    axes.plot([], [], color=NEUTRAL, linewidth=6, alpha=0.4, label="the paper's number")
    axes.plot([], [], "|", color="black", markersize=9, label="bound of the claim")
    axes.errorbar([], [], xerr=[], fmt="o", color=COLOURS[6], label="ours, 95% interval")
    axes.set_yticks(range(len(results)), [result.claim.text for result in results])
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_xlim(0.0, max(2.0, axes.get_xlim()[1]))
    axes.set_xlabel("ratio of mean returns")
    axes.grid(False, axis="y")
    figure.legend(ncols=3, loc="outside lower center")
    return figure


def _draw_claim(axes: Axes, result: ClaimResult, place: int) -> None:
    claim, colour = result.claim, _VERDICT_COLOURS[result.verdict]
    if claim.number.low is not None:
        high = claim.number.high if claim.number.high is not None else claim.number.low
        ends = np.array([claim.number.low, high])
        if ends[0] == ends[1]:
            ends = ends + [-0.008, 0.008]
        axes.plot(
            ends, [place, place], color=NEUTRAL, linewidth=6, alpha=0.4, solid_capstyle="butt"
        )
    axes.plot([claim.bound], [place], "|", color="black", markersize=9)
    ratios = [result.ratio] if result.ratio is not None else _ratios(result)
    offsets = _spread(len(ratios), 0.5)
    for ratio, offset in zip(ratios, offsets, strict=True):
        around = np.array([[ratio.value - ratio.low], [ratio.high - ratio.value]])
        axes.errorbar(ratio.value, place + offset, xerr=np.maximum(around, 0.0), fmt="o",
                      markersize=3, capsize=2, color=colour)  # fmt: skip
    axes.annotate(result.verdict.value, (1.01, place), xycoords=("axes fraction", "data"),
                  va="center", color=colour, fontsize=7, annotation_clip=False)  # fmt: skip


def _ratios(result: ClaimResult) -> list[Estimate]:
    return [comparison.ratio for comparison in result.comparisons]


def _draw_returns(
    axes: Axes, students: Sequence[PolicyGroup], teachers: Sequence[PolicyGroup]
) -> None:
    places = _places(students)
    _draw_students(axes, students, places, [mean_return(_scores(group)) for group in students])
    end = len(SIZE_GRID)
    played = [group for group in teachers if group.num_runs]
    for group, x in zip(played, end + _spread(len(played), 0.3), strict=True):
        found = mean_return(_scores(group))
        sharpened = group.policy == "teacher_sharpened"
        _draw_point(axes, x, found, "*", COLOURS[6], not sharpened,
                    "teacher, sharpened" if sharpened else "teacher")  # fmt: skip
    algorithm = students[0].teacher
    if algorithm in paper.TEACHER_RETURNS:
        number = paper.TEACHER_RETURNS[algorithm]
        axes.axhline(
            number, color=NEUTRAL, linewidth=1, linestyle="--", label="the paper's teacher"
        )
    axes.set_xticks(range(end + 1), [*SIZE_GRID, "teacher"])
    axes.set_xlim(-0.6, end + 0.6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("return")
    axes.set_title(f"{algorithm_name(algorithm)}: return (as Figure 6)")


def _draw_shares(
    axes: Axes, students: Sequence[PolicyGroup], teachers: Sequence[PolicyGroup]
) -> None:
    """Each student as a share of its teacher as it is imitated."""
    pairs = [
        pair
        for side in (FLOAT_STUDENTS, EIGHT_BIT_STUDENTS)
        for pair in beside_teacher([*students, *teachers], side, as_imitated=True).pairs
    ]
    mine = [pair.first for pair in pairs]
    found = [mean_of_ratios([pair.scores]) for pair in pairs]
    _draw_students(axes, mine, _places(mine), found)
    low, high = paper.FLOAT_ABOVE_TEACHER.low, paper.FLOAT_ABOVE_TEACHER.high
    if low is not None and high is not None:
        label = "the paper's fp32 students"
        axes.axhspan(low, high, color=NEUTRAL, alpha=0.2, linewidth=0, label=label)
    axes.axhline(1.0, color=NEUTRAL, linewidth=0.8)
    axes.set_xticks(range(len(SIZE_GRID)), list(SIZE_GRID))
    axes.set_xlim(-0.6, len(SIZE_GRID) - 0.4)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("return / teacher's as imitated")
    axes.set_title(f"{algorithm_name(students[0].teacher)}: relative (as Figure 7)")


def _draw_students(
    axes: Axes,
    students: Sequence[PolicyGroup],
    places: Sequence[float],
    estimates: Sequence[Estimate],
) -> None:
    """Colour by precision; hollow where the critic's loss was not used."""
    for group, x, found in zip(students, places, estimates, strict=True):
        floats, alone = group.policy == "distilled", group.settings["distill.actor_weight"] == 1.0
        name = f"{'fp32' if floats else '8-bit'}{' without critic loss' if alone else ''}"
        colour, marker = (COLOURS[0], "o") if floats else (COLOURS[1], "s")
        _draw_point(axes, x, found, marker, colour, not alone, name)


def _draw_point(
    axes: Axes, x: float, found: Estimate, marker: str, colour: str, filled: bool, label: str
) -> None:
    around = np.array([[found.value - found.low], [found.high - found.value]])
    axes.errorbar(
        x, found.value, np.maximum(around, 0.0), marker=marker, linestyle="", color=colour,
        markerfacecolor=colour if filled else "white", markersize=7 if marker == "*" else 3.5,
        capsize=2, label=label,
    )  # fmt: skip


def _places(students: Sequence[PolicyGroup]) -> list[float]:
    """The x of each student: side by side where several share a size."""
    order = list(SIZE_GRID)
    places = []
    for group in students:
        mates = [mate for mate in students if mate.size == group.size]
        turn = next(turn for turn, mate in enumerate(mates) if mate is group)
        places.append(order.index(group.size) + float(_spread(len(mates), _SPREAD)[turn]))
    return places


def _spread(number: int, width: float) -> np.ndarray:
    """Offsets `[number]` around 0 of things that share `width`."""
    return np.linspace(-width / 2, width / 2, number) if number > 1 else np.zeros(number)


def _scores(group: PolicyGroup) -> np.ndarray:
    assert group.scores is not None  # only evaluated groups are drawn
    return group.scores
