"""Runs that share one distilled student, as forks do (`qpd quantize RUN -o NEW`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from qpd.runs.run_directory import RunDirectory
from qpd.students.architecture import widths_text

# Phase 1's student depends on these; forks differ in the other sections only.
_SECTIONS = {"seed", "environment", "collection", "replay", "student", "distill"}
# A fork has its own of these measurements of phase 1 (`qpd.runs.fork`).
_OF_A_FORK = {"keeps_memory", "memory_refilled", "code"}


def distilled_settings(run: RunDirectory) -> str:
    """Return a text that is equal for runs whose phase 1 has one recipe, seed, teacher and task.

    It may have been trained more than once: then the students differ in chance alone.
    """
    recipe = run.recipe.model_dump(mode="json", include=_SECTIONS)
    teacher = run.manifest.teacher
    # How the teacher was named tells nothing: its digest does.
    known = None if teacher is None else [teacher.sha256, teacher.env_id, teacher.environment]
    return json.dumps([recipe, known], sort_keys=True)


def distilled_identity(run: RunDirectory) -> str:
    """Return a text that is equal for runs whose phase 1 is one and the same training."""
    # The metrics include timings, which two trainings of one recipe never share to the digit.
    metrics = run.phase("distill").metrics
    of_both = {key: value for key, value in metrics.items() if key not in _OF_A_FORK}
    return json.dumps([distilled_settings(run), of_both], sort_keys=True)


def find_distilled(run: RunDirectory, others: Sequence[RunDirectory]) -> Path | None:
    """Return the run's distilled.safetensors, or that of one of `others` with the same student.

    None if there is neither.
    """
    for candidate in (run, *others):
        same = candidate is run or distilled_identity(candidate) == distilled_identity(run)
        if same and candidate.distilled_file.is_file():
            return candidate.distilled_file
    return None


def student_label(run: RunDirectory) -> str:
    """Return a title: the size, or the widths if it has none, and any seed other than 0.

    And the function of its hidden layers, unless that is ReLU. For example `XXS`, `4-8-8-8+8`,
    `mlp-16 tanh, seed 3`.
    """
    student = run.recipe.student
    size = student.size or widths_text(student.conv_channels or (), student.hidden or ())
    size += "" if student.activation == "relu" else f" {student.activation}"
    return f"{size}, seed {run.recipe.seed}" if run.recipe.seed else size
