"""Our numbers beside those of the paper's Figures 4, 6 and 7 and Tables 1 and 3, one per line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpd.analysis.paper import published
from qpd.analysis.paper.claim_pairs import beside_teacher
from qpd.analysis.paper.claims import (
    EIGHT_BIT_STUDENTS,
    FLOAT_STUDENTS,
    LARGE_SIZES,
    LEAST_SAMPLES,
)
from qpd.analysis.paper.tables import ratio_text, return_text
from qpd.analysis.paper.verdict import mean_of_ratios
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.student_settings import phase_samples
from qpd.analysis.speed.fps_table import COLUMNS, PAPER_FPS
from qpd.bench.device_record import FP32, DeviceRecord
from qpd.students import SIZE_GRID, architecture_for
from qpd.teachers.archive.agent_identity import algorithm_name

_NOT_STATED = "not stated"
_RUNTIME = "torch"  # the paper's
_BREAKOUT = ((4, 84, 84), 4)  # observations and actions


def numbers_table(groups: Sequence[PolicyGroup], devices: Sequence[DeviceRecord]) -> ShownTable:
    """Tabulate returns, parameters, bytes and forward passes of `devices` beside the paper's.

    Students are the evaluated ones in fp32, and in 8 bits after phase 3; shares are of the
    teacher's return as it was imitated. "the paper's protocol" is the mean over runs of the best
    epoch's own validation games, which were also what chose it.
    """
    header = [
        "number", "source", "paper", "ours", "the paper's protocol", "of the teacher's",
        "runs, games",
    ]  # fmt: skip
    rows = [*_teacher_rows(groups), *_student_rows(groups)]
    flat = [*_size_rows(), *_byte_rows(groups), *_speed_rows(devices)]
    return ShownTable("numbers", header, [*rows, *([*row, "", "", ""] for row in flat)])


def shown_students(groups: Sequence[PolicyGroup]) -> list[PolicyGroup]:
    """Return the evaluated fp32 students and 8-bit ones of all phases, by size, fp32 first.

    Those of few samples are left out, unless there are no others.
    """
    order = list(SIZE_GRID)
    students = [
        group
        for group in groups
        if group.num_runs and (FLOAT_STUDENTS.holds(group) or EIGHT_BIT_STUDENTS.holds(group))
    ]
    # Sizes outside the grid have no counterpart in the paper's figures.
    known = [group for group in students if group.size in order]
    trained = [g for g in known if phase_samples(g.settings, "distill") >= LEAST_SAMPLES]
    known = trained or known
    return sorted(known, key=lambda g: (g.teacher, order.index(g.size), g.policy, -_weight(g)))


def _teacher_rows(groups: Sequence[PolicyGroup]) -> list[list[str]]:
    rows = []
    for group in groups:
        if group.policy in TEACHERS and group.num_runs:
            # The paper's teachers were not sharpened: its number stands beside the plain one
            # alone.
            plain = group.policy == "teacher"
            stated = published.TEACHER_RETURNS.get(group.teacher) if plain else None
            number = _NOT_STATED if stated is None else f"{stated:.0f}"
            name = f"{algorithm_name(group.teacher)} teacher, {group.acting}"
            rows.append([name, "text", number, return_text(group), "", "", _counts(group)])
    return rows


def _student_rows(groups: Sequence[PolicyGroup]) -> list[list[str]]:
    rows = []
    for group in shown_students(groups):
        weight = "" if np.isnan(_weight(group)) else f", lambda {_weight(group):g}"
        side = FLOAT_STUDENTS if group.policy == "distilled" else EIGHT_BIT_STUDENTS
        teachers = [found for found in groups if found.policy in TEACHERS]
        beside = beside_teacher([group, *teachers], side, as_imitated=True).pairs
        # A student has one pair: its teacher is one group for each acting rule.
        share = ratio_text(mean_of_ratios([beside[0].scores])) if beside else "-"
        name = f"{group.title}{weight}: {group.folders}"
        ours = [return_text(group), _papers_protocol(group), share, _counts(group)]
        rows.append([name, "Figures 4, 6, 7", _stated(group), *ours])
    return rows


def _papers_protocol(group: PolicyGroup) -> str:
    """Return the best validation's mean, over runs: `384.1 (16 games)`; - if none was recorded."""
    if not group.best_validations:
        return "-"
    games = group.settings["evaluation.validation_episodes"]
    return f"{np.mean(group.best_validations):.1f} ({games} games)"


def _stated(group: PolicyGroup) -> str:
    """Return what the paper's text says about a student's return."""
    if group.policy == "distilled":
        return f"{published.FLOAT_ABOVE_TEACHER.text} of its teacher's"
    if group.size in LARGE_SIZES and group.teacher in ("ppo", "a2c"):
        return f"the best {published.LARGE_RETURN.text}"
    return _NOT_STATED


def _size_rows() -> list[list[str]]:
    """Compare Table 3 with the networks that QPD builds."""
    rows = []
    for size, parameters in published.PARAMETERS.items():
        ours = architecture_for(size, *_BREAKOUT).num_parameters
        rows.append([f"{size}: parameters", "Table 3", f"{parameters:,}", f"{ours:,}"])
    return rows


def _byte_rows(groups: Sequence[PolicyGroup]) -> list[list[str]]:
    """Compare the file of an 8-bit S student with an fp32 XXS student's, if the runs hold both."""
    wanted = (("S", EIGHT_BIT_STUDENTS), ("XXS", FLOAT_STUDENTS))
    sizes = [
        next(
            (g.size_bytes for g in groups if g.size == size and side.holds(g) and g.has_file), None
        )
        for size, side in wanted
    ]
    ours = "-"
    if sizes[0] is not None and sizes[1] is not None:
        ours = f"{sizes[0] / sizes[1] - 1.0:+.0%} ({sizes[0]:,.0f} against {sizes[1]:,.0f})"
    stated = f"{published.SMALL_INTEGERS_BYTES:+.0%}"
    return [["bytes, S in 8 bits against XXS in fp32", "text", stated, ours]]


def _speed_rows(devices: Sequence[DeviceRecord]) -> list[list[str]]:
    """Compare Table 1: speed relative to the PPO or A2C teacher, in PyTorch, fp32, one thread.

    Ratios rather than passes per second, as no device of ours is one of the paper's.
    """
    if not devices:
        return []
    teacher = COLUMNS[len(SIZE_GRID)]
    rows = []
    for place, size in enumerate(SIZE_GRID):
        ratios = [fps[place] / fps[COLUMNS.index(teacher)] for fps in PAPER_FPS.values()]
        ours = [
            row.ratio
            for device in devices
            for row in device.rows
            if (row.runtime, row.size, row.weight_bits, row.threads) == (_RUNTIME, size, FP32, 1)
            if not row.is_teacher and row.ratio is not None
            # Beside a DQN, which has no critic to compute, the ratio is another.
            if "dqn" not in (row.teacher or "")
        ]
        stated = f"{min(ratios):.1f}x to {max(ratios):.1f}x"
        name = f"{size}: speed against the teacher's"
        rows.append([name, "Table 1", stated, ", ".join(f"{x:.1f}x" for x in ours) or "-"])
    return rows


def _counts(group: PolicyGroup) -> str:
    return f"{group.num_runs}, {group.num_episodes}"


def _weight(group: PolicyGroup) -> float:
    """Return lambda; NaN for teachers without a critic."""
    weight = group.settings.get("distill.actor_weight")
    return np.nan if weight is None else float(weight)
