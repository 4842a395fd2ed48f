"""The actions of a run's students, by their files, or else by the teacher's algorithm."""

from __future__ import annotations

from qpd.actions import ActionSpace, Box, Discrete
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.origin import student_actions

_Q_VALUES = ("dqn", "qrdqn")
_CONTINUOUS = ("sac", "tqc", "td3", "ddpg")  # of these alone the name tells it
_NO_CRITIC = "ars"


def run_actions(run: RunDirectory, algo: str) -> ActionSpace:
    """Return the students' actions; of a run that keeps no file, some of the same kind.

    Raises StudentFileError.
    """
    for file in (run.quantized_file, run.ptq_file, run.distilled_file):
        if file.is_file():
            return student_actions(file)
    if algo in _CONTINUOUS:
        return Box((-1.0,), (1.0,))
    return Discrete(1, "q_values" if algo in _Q_VALUES else "logits")


def has_critic(actions: ActionSpace, algo: str) -> bool:
    """Tell whether the teacher's values are a critic's, which a student can learn."""
    return not actions.has_values and algo != _NO_CRITIC
