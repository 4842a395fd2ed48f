"""Report section: the student's actions in one game, and the teacher's on the same observations."""

from __future__ import annotations

from qpd.actions import Box
from qpd.analysis.networks.action_traces import (
    DRAWN_STEPS,
    ActionTraces,
    action_traces,
    draw_actions_on,
    figure_height,
)
from qpd.analysis.report.blocks import Picture, Pictures, Section, Table
from qpd.analysis.report.figure_uri import figure_uri
from qpd.analysis.report.inputs import ReportInputs
from qpd.environments.registry import EnvironmentConfigError
from qpd.runs.target import TargetError
from qpd.student_files.distilled import StudentFileError

KEY, TITLE = "actions", "What both do"


def actions_section(inputs: ReportInputs) -> Section | None:
    """Show the game that is filmed, in figures; None if nothing is to be played."""
    if inputs.video_seconds is None or inputs.student is None:
        return None
    inputs.note("playing for the figure of actions")
    try:
        traces = action_traces(inputs.path, inputs.student, DRAWN_STEPS)
    except (EnvironmentConfigError, StudentFileError, TargetError) as error:
        return Section(KEY, TITLE, left_out=f"Nothing was played: {error}.")
    height = figure_height(traces, 1)
    uri = figure_uri(lambda figure: draw_actions_on(figure, traces, 1), height)
    return Section(
        KEY, TITLE, [Pictures([Picture(uri, _alt(traces), _caption(traces))], _table(traces))]
    )


def _caption(traces: ActionTraces) -> str:
    what = "Each action, within its bounds," if isinstance(traces.actions, Box) else "Actions"
    text = f"{what} in {traces.steps:,} decisions of a game that the student plays"
    if traces.missing is None:
        return f"{text}; the teacher was asked on the same observations."
    return f"{text}. The teacher cannot be loaded: {traces.missing}."


def _alt(traces: ActionTraces) -> str:
    if not isinstance(traces.actions, Box):
        return "Bars of how often each action is taken, as in the table beside it."
    if traces.missing is not None:
        return "Lines of the student's actions over time."
    apart = traces.summary["difference"].mean()
    return f"Lines of both agents' actions over time, {apart:.1%} of the range apart on average."


def _table(traces: ActionTraces) -> Table:
    """Return the summary as text: means and distance, or shares."""
    is_box, has_teacher = isinstance(traces.actions, Box), traces.missing is None
    number = "{:.3g}" if is_box else "{:.1%}"
    header = ["mean action" if is_box else "share of steps", "student"]
    header += ["teacher"] * has_teacher + ["apart, of range"] * (is_box and has_teacher)
    rows = []
    for about in traces.summary.to_dict("records"):
        row = [str(about["action"]), number.format(about["student"])]
        row += [number.format(about["teacher"])] * has_teacher
        rows.append(row + [f"{about['difference']:.1%}" for _ in range(is_box and has_teacher)])
    return Table(header, rows)
