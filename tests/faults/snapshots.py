"""Run directories at several states, as killed processes left them."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from tests.faults.experiment import Experiment, place
from tests.faults.processes import Starter, run_to_end, wait


def snapshots(experiment: Experiment, starter: Starter) -> dict[str, Path]:
    """Mid phase 1, after phase 1, mid phase 3, and finished."""
    folder = experiment.whole.parent
    found = {"finished": experiment.whole, "after phase 1": folder / "after-1"}
    for state, phase in (("mid phase 1", "distill"), ("mid phase 3", "finetune")):
        found[state] = killed_in(experiment, folder / state.replace(" ", "-"), phase, starter)
    code, errors = run_to_end(
        starter,
        ["distill", experiment.recipe_file, "-o", found["after phase 1"]],
        folder / "after-1.log",
    )
    assert code == 0, errors
    return found


def killed_in(experiment: Experiment, path: Path, phase: str, starter: Starter) -> Path:
    """A run killed when it had rows of `phase` to lose."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        arguments = ["run", experiment.recipe_file, "-o", path]
        process = starter.start(arguments, path.with_suffix(".log"))
        while process.poll() is None and not _has_rows(path, phase):
            time.sleep(0.002)
        process.send(signal.SIGKILL)
        wait(process)
        if place(path) == phase:
            return path
    raise AssertionError(f"never killed in {phase}")


def _has_rows(path: Path, phase: str) -> bool:
    file = path / "metrics.csv"
    return file.is_file() and f"\n{phase},2," in file.read_text()
