"""A long run, to see whether epochs slow down, or memory, threads or open files grow.

python -m benchmarks.distillation.soak             # minutes: phase 1 on a small memory
python -m benchmarks.distillation.soak --epochs 1200 --finetune-epochs 300 --capacity 10000 \
    --validate-every 25 --record soak.csv               # hours: all three phases
python -m benchmarks.distillation.soak --read soak.csv               # the tables of a recorded one

It works in a run directory, with checkpoints, metrics, validation, and the student playing half of
the games. The baseline of each number is the same number after a tenth of the phase. Seconds on the
clock depend on everything that shares the machine; processor seconds, beside them, are ours alone.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import pandas as pd
from rich.console import Console

from benchmarks.play.replay import resident_bytes
from benchmarks.timing import parse_arguments, print_rates
from qpd.phases.distill import distill
from qpd.phases.finetune import finetune
from qpd.phases.preparation import prepare
from qpd.phases.quantize import quantize
from qpd.phases.student_run import open_student
from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe
from qpd.runs.epoch_report import EpochReport
from qpd.runs.progress import TerminalProgress
from qpd.runs.run_directory import RunDirectory

COLUMNS = {  # recorded name -> the table's name, and the unit it prints in
    "seconds": ("seconds on the clock", 1.0),
    "cpu_seconds": ("seconds of processor", 1.0),
    "resident": ("resident MB", 1e6),
    "open_files": ("open files", 1.0),
    "threads": ("threads", 1.0),
}


class Recorder(TerminalProgress):
    """The usual display, which also records time, memory, threads and open files per epoch."""

    def __init__(self, record: Path) -> None:
        super().__init__(Console(stderr=True))
        self._record = record
        self._phase = ""
        with record.open("w", newline="") as file:
            csv.writer(file).writerow(["phase", "epoch", *COLUMNS])
        self._restart()

    def _restart(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def phase(self, name: str, total_epochs: int, first_epoch: int) -> None:
        """Start the clocks of a phase."""
        super().phase(name, total_epochs, first_epoch)
        self._phase = name
        self._restart()

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """Add a line to the record."""
        super().epoch(report, label)
        process = Path("/proc/self")
        line = [
            round(time.perf_counter() - self._began, 3),
            round(time.process_time() - self._cpu, 3),
            resident_bytes(),
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
        ]
        # Appended epoch by epoch: a soak that is interrupted keeps what it recorded.
        with self._record.open("a", newline="") as file:
            csv.writer(file).writerow([self._phase, report.epoch, *line])
        self._restart()


def soak_recipe(arguments: argparse.Namespace) -> Recipe:
    """Return the quickstart on a small memory, for many epochs."""
    settings = {
        "replay.capacity": arguments.capacity,
        "environment.num_envs": 16,
        "environment.max_frames": 20_000,
        "distill.epochs": arguments.epochs,
        "finetune.epochs": max(1, arguments.finetune_epochs),
        "evaluation.validation_episodes": 2,
        "evaluation.validate_every": arguments.validate_every or arguments.epochs,
    }
    return load_recipe("quickstart", [f"{key}={value}" for key, value in settings.items()])


def soak(arguments: argparse.Namespace, folder: Path, record: Path) -> None:
    """Run the phases in `folder`, recording every epoch."""
    recipe = soak_recipe(arguments)
    with RunDirectory.create(folder / "run", recipe) as run:
        progress = Recorder(record)
        with open_student(run, prepare(recipe, "cpu"), progress) as (student, play):
            distill(student, play, progress)
            if arguments.finetune_epochs:
                quantize(student, play, progress)
                finetune(student, play, progress)


def print_record(record: Path) -> None:
    """Print a table per phase: the second tenth of its epochs against the last tenth."""
    epochs = pd.read_csv(record)
    for phase, part in epochs.groupby("phase", sort=False):
        # The first tenth is left out: caches fill, and allocations reach their size.
        tenth = max(1, len(part) // 10)
        # Medians: a validation or a checkpoint makes single epochs long.
        early, late = part.iloc[tenth : 2 * tenth].median(numeric_only=True), part.iloc[-tenth:]
        late = late.median(numeric_only=True)
        rows = [
            [name, f"{early[key] / unit:,.2f}", f"{late[key] / unit:,.2f}"]
            + [f"{late[key] / early[key]:.2f}x"]
            for key, (name, unit) in COLUMNS.items()
        ]
        hours = part["seconds"].sum() / 3600
        headers = ["median per epoch", f"epochs {tenth + 1}-{2 * tenth}", "the last tenth", "ratio"]
        print_rates(f"{phase}: {len(part):,} epochs, {hours:.2f} hours", headers, rows)


def main() -> None:
    """Run, or read a record, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--finetune-epochs", type=int, default=0)
    parser.add_argument("--capacity", type=int, default=5000)
    parser.add_argument("--validate-every", type=int, default=0, help="0: after the last epoch")
    parser.add_argument("--record", type=Path, help="keep the epochs in this CSV file")
    parser.add_argument("--read", type=Path, help="only print the tables of this CSV file")
    arguments = parse_arguments(parser)
    if arguments.read:
        print_record(arguments.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        record = arguments.record or Path(folder) / "soak.csv"
        soak(arguments, Path(folder), record)
        print_record(record)


if __name__ == "__main__":
    main()
