"""From an agent to a device: the agent itself in few bits, beside its students.

python -m benchmarks.device.ways SUITE RUNS... [-o FOLDER]

SUITE: the folder of `qpd quantize AGENT... --bits 8,4 --activations 8 --scheme dorefa_scaled`;
RUNS: run directories of students of the same agents, or folders of them. For each agent that has
both: bytes of constants, latency in C (the export with SIMD, one thread, medians of 5 turns, all in
turn), and what is kept, (R - R_random) / (R_agent - R_random), of 100 games each. The agent as it
is acts by Stable-Baselines3's `predict` in PyTorch. Prints a table; -o draws ways.png, .svg and
.csv, too.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from qpd.agents.results import AgentResult
from qpd.agents.stored_suite import read_suites
from qpd.analysis.figure_style import (
    COLOURS,
    MARKERS,
    NEUTRAL,
    PAGE_WIDTH,
    new_figure,
    paper_style,
    save_figure,
)
from qpd.analysis.returns.parity import parity_table
from qpd.bench.c_program import CProgram
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.c.code import export_c
from qpd.files.atomic import write_text
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.quantized import load_integer_student, stored_constant_bytes
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.sb3_policy import build_sb3_policy

TURNS, SECONDS = 5, 0.2


@dataclass(frozen=True)
class Way:
    """One way from an agent to a device; `kept` is a share, `us` microseconds per observation."""

    agent: str
    way: str
    num_bytes: int
    us: float
    mean_return: float
    kept: float


def main() -> None:
    """Print the table; draw it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    students, _ = parity_table(arguments.runs)
    ways: list[Way] = []
    for result in read_suites([arguments.suite]):
        teacher = load_teacher(result.source)
        mine = students[students["teacher_sha256"] == teacher.sha256]
        if len(mine):
            found = [
                (f"student {row.size}, {row.bits.partition('/')[0]} bits", Path(row.run),
                 float(row.mean), float(row.kept))
                for row in mine.sort_values(["size", "bits"], ascending=[True, False]).itertuples()
            ]  # fmt: skip
            ways += _ways(arguments.suite, result, teacher, found)
    print(_table(ways))
    if arguments.output is not None:
        _draw(ways, arguments.output)


def _ways(
    suite: Path,
    result: AgentResult,
    teacher: Teacher,
    students: list[tuple[str, Path, float, float]],
) -> list[Way]:
    random = float(np.mean(result.random.returns))
    own = float(np.mean(result.fp32.played.returns))
    runs = []
    for precision, label in (("W8A8", "agent, 8 bits"), ("W4A8", "agent, 4 bits")):
        for cell in result.cells:
            folder = suite / result.name / f"{precision}-{cell.scheme}-{cell.per}"
            if cell.precision == precision and (folder / "manifest.json").is_file():
                mean = float(np.mean(cell.played.returns))
                runs.append((label, folder, mean, (mean - random) / (own - random)))
                break
    runs += students
    with tempfile.TemporaryDirectory() as name:
        turns: list[Callable[[], float]] = [_sb3(teacher)]
        sizes = [4 * teacher.actor_parameters]
        for position, (_, run, _, _) in enumerate(runs):
            program, size = _program(run, Path(name) / str(position))
            turns.append(lambda program=program: program.turn(SECONDS).median_us)  # type: ignore
            sizes.append(size)
        times = [[turn() for turn in turns] for _ in range(TURNS)]
    us = [statistics.median(column) for column in zip(*times, strict=True)]
    rows = [("agent, fp32 (PyTorch)", own, 1.0), *((label, m, k) for label, _, m, k in runs)]
    return [
        Way(result.name, label, size, latency, mean, kept)
        for (label, mean, kept), size, latency in zip(rows, sizes, us, strict=True)
    ]


def _program(run: Path, folder: Path) -> tuple[CProgram, int]:
    """Build a run's C export; return it, and its constants in bytes."""
    directory = RunDirectory.open(run, read_only=True)
    student = load_integer_student(directory.quantized_file)
    folder.mkdir()
    golden = golden_vectors(student)
    for name, content in export_c(ExportSource(student, {}, "way"), golden).items():
        (folder / name).write_bytes(content)
    observations = folder / "observations.bin"
    observations.write_bytes(student.encode(golden.observations).tobytes())
    return CProgram(folder, False, observations), stored_constant_bytes(directory.quantized_file)


def _sb3(teacher: Teacher) -> Callable[[], float]:
    policy = build_sb3_policy(teacher)
    seen = np.zeros((1, *teacher.observation_shape), np.float32)

    def turn() -> float:
        times = []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            policy.predict(seen, deterministic=True)
            times.append(time.perf_counter() - began)
        return 1e6 * statistics.median(times)

    return turn


def _table(ways: list[Way]) -> str:
    lines = ["| agent | way | bytes | latency, us | return | kept |", "|---|---|---|---|---|---|"]
    last = ""
    for way in ways:
        name = way.agent if way.agent != last else ""
        last = way.agent
        lines.append(f"| {name} | {way.way} | {way.num_bytes:,} | {way.us:,.2f} | "
                     f"{way.mean_return:,.1f} | {100 * way.kept:.1f}% |")  # fmt: skip
    return "\n".join(lines)


def _draw(ways: list[Way], folder: Path) -> None:
    agents = list(dict.fromkeys(way.agent for way in ways))
    kinds = {"agent, fp32": NEUTRAL, "agent, 8": COLOURS[0], "agent, 4": COLOURS[4],
             "8 bits": COLOURS[1], "4 bits": COLOURS[5]}  # fmt: skip
    labels = {"agent, fp32": "the agent, fp32", "agent, 8": "the agent, 8 bits",
              "agent, 4": "the agent, 4 bits", "8 bits": "a student, 8 bits",
              "4 bits": "a student, 4 bits"}  # fmt: skip
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 0.32 * len(agents) + 1.1)
        left, right = figure.subplots(1, 2, sharey=True)
        for line, agent in enumerate(agents):
            for way in (each for each in ways if each.agent == agent):
                kind = next(key for key in kinds if key in way.way)
                place = list(kinds).index(kind)
                look = {"color": kinds[kind], "marker": MARKERS[place], "linestyle": "none"}
                # Hollow: less than nine tenths are kept.
                fill = kinds[kind] if way.kept >= 0.9 else "none"
                for axis, value in ((left, way.num_bytes), (right, way.us)):
                    axis.plot(value, line, markersize=5, markerfacecolor=fill, **look)
        for axis, label in ((left, "bytes of constants"), (right, "microseconds per action")):
            axis.set_xscale("log")
            axis.set_xlabel(label)
        left.set_yticks(range(len(agents)), agents)
        left.invert_yaxis()
        handles = [
            left.plot([], [], color=kinds[kind], marker=MARKERS[place], linestyle="none",
                      label=labels[kind])[0]
            for place, kind in enumerate(kinds)
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside upper center", ncols=5)
        for path in save_figure(figure, folder, "ways"):
            print(path)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Way)])
    writer.writerows(astuple(way) for way in ways)
    write_text(folder / "ways.csv", text.getvalue())


if __name__ == "__main__":
    main()
