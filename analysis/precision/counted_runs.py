"""The gradients that runs and trainings counted, by run and phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qpd.analysis.precision.precision_table import PHASES
from qpd.analysis.runs.run_frame import distinct_names
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.run_directory import RunDirectory
from qpd.runs.training_run import TrainingRun, is_training


def counted_runs(runs: Sequence[Path]) -> dict[str, dict[str, PhaseGradients]]:
    """Return what each of `runs` counted, by phase; `train` is a training's.

    Runs that counted nothing are left out; names are `distinct_names`. Raises RunDirectoryError and
    GradientCountsError.
    """
    counted = {}
    for path, name in distinct_names(runs).items():
        if is_training(path):
            files = {"train": TrainingRun.open(path).exponents_file}
        else:
            run = RunDirectory.open(path, read_only=True)
            files = {str(phase): run.exponents_file(phase) for phase in PHASES.values()}
        read = {phase: PhaseGradients.read(file) for phase, file in files.items()}
        counted[name] = {phase: each for phase, each in read.items() if each is not None}
    return {name: phases for name, phases in counted.items() if phases}
