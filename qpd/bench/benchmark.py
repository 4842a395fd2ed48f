"""The benchmark of one device: every runtime, model and thread count beside the SB3 teacher."""

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
from qpd.bench.runtimes import BASELINE, RUNTIMES, start_student, start_teacher
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
    """Benchmark `models` one after the other; the teacher takes turns beside each.

    `note` is called with a line of progress. Contestants that fail become rows with a reason; none
    raises.
    """
    with tempfile.TemporaryDirectory(prefix="qpd-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        frames = OBSERVATIONS[settings.frames]()
        # Started once and timed again beside each model: a ratio compares turns of the same
        # minutes.
        teachers = _teachers(settings, folder, frames, stack)
        rows: list[BenchRow] = []
        for index, model in enumerate(models):
            note(f"{model.name} ({index + 1} of {len(models)}): building, checking")
            # One model's processes at a time: all of them together would not fit into a small
            # board's memory.
            with ExitStack() as group:
                students = _students(model, settings, folder / str(index), frames, group)
                note(f"{model.name}: {settings.rounds} rounds")
                take_turns([*teachers, *students], settings.rounds, settings.seconds)
                rows += [bench_row(x, _baseline(x, model, teachers, settings)) for x in students]
        # Without a model the teacher alone measures the device.
        if not models:
            take_turns(teachers, settings.rounds, settings.seconds)
        rows = [*(_teacher_row(x, teachers) for x in teachers), *rows]
    return DeviceRecord(
        device=device or device_name(),
        cpu=cpu_model(),
        cores=usable_cores(),
        os=system(),
        versions=versions(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings_record(settings),
        rows=rows,
    )


def settings_record(settings: BenchSettings) -> dict[str, Any]:
    """Return how it was measured, for the device's record."""
    return {
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "frames": settings.frames,
    }


def _teachers(
    settings: BenchSettings, folder: Path, frames: np.ndarray, stack: ExitStack
) -> list[Contestant]:
    """Start the baseline for every thread count, and the teacher in other requested runtimes."""
    others = [name for name in settings.runtimes if RUNTIMES[name].runs_teacher]
    teachers = []
    # dict.fromkeys keeps the order and drops a baseline that was asked for as well.
    for runtime in dict.fromkeys([BASELINE, *others]):
        for threads in _teacher_threads(settings):
            place = folder / f"teacher-{runtime}-{threads}"
            teachers.append(start_teacher(runtime, threads, place, frames))
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
    student: Contestant,
    model: BenchModel,
    teachers: Sequence[Contestant],
    settings: BenchSettings,
) -> float | None:
    """Return the teacher's forward passes per second beside this model.

    None for vector observations, as no such teacher comes with QPD.
    """
    for teacher in teachers:
        if (teacher.runtime, teacher.threads) == (BASELINE, student.threads):
            is_image = model.student.architecture.is_image
            return forwards_per_second(teacher, settings.rounds) if is_image else None
    return None


def _teacher_row(teacher: Contestant, teachers: Sequence[Contestant]) -> BenchRow:
    for baseline in teachers:
        if (baseline.runtime, baseline.threads) == (BASELINE, teacher.threads):
            return bench_row(teacher, forwards_per_second(baseline, len(baseline.turns)))
    return bench_row(teacher)
