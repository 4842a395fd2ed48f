"""The benchmark of one device: every runtime, model and thread count beside the SB3 teachers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from qpd.bench.contestant import Contestant
from qpd.bench.device_record import BenchRow, DeviceRecord
from qpd.bench.models import BenchModel
from qpd.bench.rounds import bench_row, forwards_per_second, take_turns
from qpd.bench.runtimes import BASELINE, PREDICT, RUNTIMES, start_student, start_teacher
from qpd.bench.teachers import TeacherGroup, group_by_teacher
from qpd.bench.timed_observations import OBSERVATIONS
from qpd.machine.cores import usable_cores
from qpd.machine.description import cpu_model, device_name, system, versions


@dataclass(frozen=True)
class BenchSettings:
    """The runtimes and thread counts to measure, with `rounds` turns of `seconds` each.

    `frames` names the observations that image students are timed on: `breakout` or `noise`.
    """

    runtimes: tuple[str, ...]
    threads: tuple[int, ...]
    rounds: int
    seconds: float
    frames: str = "breakout"


def run_benchmark(
    models: Sequence[BenchModel],
    settings: BenchSettings,
    device: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> DeviceRecord:
    """Benchmark `models` one after the other; the teacher of each takes turns beside it.

    `note` is called with a line of progress. Contestants that fail become rows with a reason; none
    raises. Rows are in the order of teachers: those of a teacher, then those of its students.
    """
    frames = OBSERVATIONS[settings.frames]()
    groups, notes = group_by_teacher(models)
    rows: list[BenchRow] = []
    with tempfile.TemporaryDirectory(prefix="qpd-bench-") as name:
        for index, group in enumerate(groups):
            rows += _group_rows(group, settings, Path(name) / str(index), frames, note)
    return DeviceRecord(
        device=device or device_name(),
        cpu=cpu_model(),
        cores=usable_cores(),
        os=system(),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings_record(settings),
        rows=rows,
        notes=notes,
    )


def settings_record(settings: BenchSettings) -> dict[str, Any]:
    """Return how it was measured, for the device's record."""
    return {
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "frames": settings.frames,
    }


def _group_rows(
    group: TeacherGroup,
    settings: BenchSettings,
    folder: Path,
    frames: np.ndarray,
    note: Callable[[str], None],
) -> list[BenchRow]:
    """Time one teacher and its students; return the teacher's rows, then theirs."""
    rows: list[BenchRow] = []
    with ExitStack() as stack:
        # Started once and timed again beside each model: a ratio compares turns of the same
        # minutes.
        teachers = _teachers(group, settings, folder, frames, stack)
        for index, model in enumerate(group.models):
            note(f"{model.name}: building, checking")
            # One model's processes at a time: all of them together would not fit into a small
            # board's memory.
            with ExitStack() as own:
                students = _students(model, settings, folder / str(index), frames, own)
                note(f"{model.name}: {settings.rounds} rounds")
                take_turns([*teachers, *students], settings.rounds, settings.seconds)
                for student in students:
                    student.teacher = None if group.teacher is None else group.teacher.name
                    rows.append(bench_row(student, _baseline(student, teachers, settings)))
        # Without a model the teacher alone measures the device.
        if not group.models:
            take_turns(teachers, settings.rounds, settings.seconds)
        return [*(_teacher_row(x, teachers) for x in teachers), *rows]


def _teachers(
    group: TeacherGroup,
    settings: BenchSettings,
    folder: Path,
    frames: np.ndarray,
    stack: ExitStack,
) -> list[Contestant]:
    """Start the group's teacher for every thread count: the baseline, SB3's `predict`, and others.

    A teacher of vectors is timed on what its first student is timed on.
    """
    if group.teacher is None:
        return []
    observations = group.models[0].timed_on(frames) if group.models else frames
    others = [name for name in settings.runtimes if RUNTIMES[name].runs_teacher]
    teachers = []
    # dict.fromkeys keeps the order and drops a baseline that was asked for as well.
    for runtime in dict.fromkeys([BASELINE, PREDICT, *others]):
        for threads in _teacher_threads(settings):
            place = folder / f"teacher-{runtime}-{threads}"
            teachers.append(start_teacher(runtime, group.teacher, threads, place, observations))
            stack.callback(teachers[-1].close)
    return teachers


def _teacher_threads(settings: BenchSettings) -> tuple[int, ...]:
    """Return the teacher's thread counts; runtimes with one thread need a teacher with one."""
    single = any(not RUNTIMES[name].has_threads for name in settings.runtimes)
    return tuple(dict.fromkeys([*([1] if single else []), *settings.threads]))


def _students(
    model: BenchModel,
    settings: BenchSettings,
    folder: Path,
    frames: np.ndarray,
    stack: ExitStack,
) -> list[Contestant]:
    students = []
    for runtime in settings.runtimes:
        for threads in settings.threads if RUNTIMES[runtime].has_threads else (1,):
            place = folder / f"{runtime}-{threads}"
            students.append(start_student(runtime, model, threads, place, frames))
            stack.callback(students[-1].close)
    return students


def _baseline(
    student: Contestant, teachers: Sequence[Contestant], settings: BenchSettings
) -> float | None:
    """Return the teacher's forward passes per second beside this model; None without a teacher."""
    for teacher in teachers:
        if (teacher.runtime, teacher.threads) == (BASELINE, student.threads):
            return forwards_per_second(teacher, settings.rounds)
    return None


def _teacher_row(teacher: Contestant, teachers: Sequence[Contestant]) -> BenchRow:
    for baseline in teachers:
        if (baseline.runtime, baseline.threads) == (BASELINE, teacher.threads):
            return bench_row(teacher, forwards_per_second(baseline, len(baseline.turns)))
    return bench_row(teacher)
