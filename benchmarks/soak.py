"""A long run on a small memory: is the last epoch as fast as the first, and does memory grow?

python -m benchmarks.soak [--epochs 200] [--threads 2]

Phase 1 in a run directory, with checkpoints, metrics and the student playing half of the games.
The baseline of each number is the same one after a tenth of the run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.replay import resident_bytes
from benchmarks.timing import parse_arguments, print_rates
from qpd.phase_distill import distill
from qpd.progress import RunProgress
from qpd.recipe_loading import load_recipe
from qpd.run_directory import RunDirectory
from qpd.session import open_session, prepare
from qpd.training_phases import EpochReport


class Recorder(RunProgress):
    """The usual display, which also notes time, resident memory and open files of each epoch."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True))
        self.began = time.perf_counter()
        self.epochs: list[tuple[float, int, int]] = []

    def epoch(self, report: EpochReport, label: str = "") -> None:
        """Note the epoch."""
        now = time.perf_counter()
        files = len(list(Path("/proc/self/fd").iterdir()))
        self.epochs.append((now - self.began, resident_bytes(), files))
        self.began = now


def main() -> None:
    """Run, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    arguments = parse_arguments(parser)
    epochs = arguments.epochs
    recipe = load_recipe(
        "quickstart",
        [
            "replay.capacity=5000",
            f"distill.epochs={epochs}",
            "environment.num_envs=16",
            "evaluation.validation_episodes=1",
            f"evaluation.validate_every={epochs}",
            "environment.max_frames=4000",
        ],
    )
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run", recipe)
        session = open_session(run, prepare(recipe, "cpu"), recorder)
        try:
            distill(session)
        finally:
            session.close()
    tenth = max(1, epochs // 10)
    early, late = recorder.epochs[tenth : 2 * tenth], recorder.epochs[-tenth - 1 : -1]
    rows = []
    for name, column, unit in (("seconds", 0, 1.0), ("resident MB", 1, 1e6), ("open files", 2, 1)):
        first, last = (statistics.median(e[column] for e in part) / unit for part in (early, late))
        rows.append([name, f"{first:,.2f}", f"{last:,.2f}", f"{last / first:.2f}x"])
    headers = ["median per epoch", f"epochs {tenth + 1}-{2 * tenth}", "the last tenth", "ratio"]
    print_rates(f"{epochs} epochs on a memory of 5,000", headers, rows)


if __name__ == "__main__":
    main()
