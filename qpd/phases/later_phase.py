"""A run opened for phase 2 or 3 with other settings, or a fork of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from qpd.errors.codes import ErrorCode
from qpd.phases.play import Play
from qpd.phases.preparation import prepare
from qpd.phases.student_run import StudentRun, open_student
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import RecipeError
from qpd.runs.fork import fork_run
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory, RunDirectoryError
from qpd.student_files.distilled import load_student


@contextmanager
def open_later(
    path: Path,
    phase: Literal["quantize", "finetune"],
    lines: Sequence[str],
    device: str | None,
    output: str | os.PathLike[str] | None,
    progress: Progress,
) -> Iterator[tuple[StudentRun, Play]]:
    """Open a run directory, or a fork of it in `output`, with other settings from `phase` on.

    `lines` are overrides. Raises RecipeError for one that the phase cannot change, and
    RunDirectoryError where an earlier phase has not finished or this one has begun with others.
    """
    changeable: tuple[str, ...] = ("finetune.",)
    if phase == "quantize":
        changeable = ("quantize.", "finetune.", "evaluation.", "name=")
    foreign = [line for line in lines if not line.startswith(changeable)]
    if foreign:
        allowed = ", ".join(f"{key}*" for key in changeable if key.endswith("."))
        raise RecipeError(
            [f"--set {line}: `qpd {phase}` changes {allowed} only" for line in foreign],
            ErrorCode.RECIPE_OVERRIDE,
        )
    with RunDirectory.open(path) as opened:
        needed: Literal["distill", "quantize"] = "distill" if phase == "quantize" else "quantize"
        if opened.phase(needed).state != "done":
            raise RunDirectoryError(
                [f"{path}: {phase} needs a finished {needed}: run `qpd {needed}` first"],
                ErrorCode.RUN_PHASE_MISSING,
            )
        load_student(opened.distilled_file)  # a damaged one leaves everything as it is
        changed = override_recipe(opened.recipe, lines)
        prepared = prepare(changed, device or changed.device)
        if output is not None:
            with (
                fork_run(opened, Path(output), changed) as fork,
                open_student(fork, prepared, progress) as parts,
            ):
                yield parts
            return
        if opened.phase(phase).state != "pending" and changed != opened.recipe:
            raise RunDirectoryError(
                [f"{path}: {phase} has begun with other settings; `qpd quantize {path} -o NEW`"],
                ErrorCode.RUN_OTHER_RECIPE,
            )
        opened.replace_recipe(changed)
        with open_student(opened, prepared, progress) as parts:
            yield parts
