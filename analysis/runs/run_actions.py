"""The actions of a run's students, by their files, or else by the teacher's algorithm."""

from __future__ import annotations

from qpd.actions import ActionSpace, Box, Discrete
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.origin import student_actions
from qpd.teachers.archive.algorithm import (
    DETERMINISTIC_ALGORITHMS,
    GAUSSIAN_ALGORITHMS,
    Q_ALGORITHMS,
    SEARCH_ALGORITHM,
)


def run_actions(run: RunDirectory, algo: str) -> ActionSpace:
    """Return the students' actions; of a run that keeps no file, some of the same kind.

    Raises StudentFileError.
    """
    for file in (run.quantized_file, run.ptq_file, run.distilled_file):
        if file.is_file():
            return student_actions(file)
    if algo in (*GAUSSIAN_ALGORITHMS, *DETERMINISTIC_ALGORITHMS):  # others may be continuous
        return Box((-1.0,), (1.0,))
    return Discrete(1, "q_values" if algo in Q_ALGORITHMS else "logits")


def has_critic(actions: ActionSpace, algo: str) -> bool:
    """Tell whether the teacher's values are a critic's, which a student can learn."""
    return not actions.has_values and algo != SEARCH_ALGORITHM
