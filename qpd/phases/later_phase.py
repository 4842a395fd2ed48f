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
from qpd.recipe.differences import recipe_differences
from qpd.recipe.loading import override_recipe
from qpd.recipe.schema import RecipeError
from qpd.runs.fork import fork_run
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory, RunDirectoryError, at_same_place
from qpd.runs.target import GONE, agent_gone, found_beside
from qpd.student_files.distilled import load_student
from qpd.teachers import TeacherError


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
    allowed_too = (*changeable, "teacher.source=")  # the same agent at another place
    foreign = [line for line in lines if not line.startswith(allowed_too)]
    if foreign:
        allowed = ", ".join(f"{key}*" for key in changeable if key.endswith("."))
        raise RecipeError(
            [f"--set {line}: `qpd {phase}` changes {allowed} only" for line in foreign],
            ErrorCode.RECIPE_OVERRIDE,
        )
    with _opened(path, is_forked=output is not None) as opened:
        needed: Literal["distill", "quantize"] = "distill" if phase == "quantize" else "quantize"
        if opened.phase(needed).state != "done":
            raise RunDirectoryError(
                [f"{path}: {phase} needs a finished {needed}: run `qpd {needed}` first"],
                ErrorCode.RUN_PHASE_MISSING,
            )
        load_student(opened.distilled_file)  # a damaged one leaves everything as it is
        changed = override_recipe(opened.recipe, lines)
        is_told = any(line.startswith("teacher.source=") for line in lines)
        if is_told:
            changed = changed.model_copy(update={"teacher": found_beside(changed.teacher)})
        try:
            prepared = prepare(changed, device or changed.device)
        except TeacherError as error:
            if is_told or error.code not in GONE:
                raise
            raise agent_gone(path, changed.teacher, f"{phase} {path}", error) from error
        opened.refuse_another_teacher(prepared.teacher.source, prepared.teacher.sha256)
        if output is not None:
            with (
                fork_run(opened, Path(output), changed) as fork,
                open_student(fork, prepared, progress) as parts,
            ):
                yield parts
            return
        is_same = at_same_place(opened.recipe, changed) == changed
        if opened.phase(phase).state != "pending" and not is_same:
            before = at_same_place(opened.recipe, changed)
            told = "; ".join(recipe_differences(before, changed))
            line = f"{path}: {phase} has begun with other settings ({told})"
            raise RunDirectoryError(
                [f"{line}: with -o NEW as well `qpd quantize` makes another run"],
                ErrorCode.RUN_OTHER_RECIPE,
            )
        opened.replace_recipe(changed)
        with open_student(opened, prepared, progress) as parts:
            yield parts


def _opened(path: Path, is_forked: bool) -> RunDirectory:
    """Open a run to change it; one that is forked may lie where nothing can be written."""
    try:
        return RunDirectory.open(path)
    except RunDirectoryError as error:
        if not is_forked or error.code is not ErrorCode.RUN_UNWRITABLE:
            raise
        return RunDirectory.open(path, read_only=True)
