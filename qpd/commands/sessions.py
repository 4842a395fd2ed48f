"""The sessions of the commands that run single phases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from qpd.commands.output import progress
from qpd.errors.codes import ErrorCode
from qpd.recipe.schema import Recipe, RecipeError


def default_output(recipe: Recipe) -> Path:
    """Return the default output directory."""
    return Path("runs") / recipe.name


@contextmanager
def first_session(recipe: Recipe, output: Path | None) -> Iterator[Any]:
    """Open a session for a recipe: run directory, teacher, progress display."""
    from qpd.phases.preparation import prepare
    from qpd.runs.run_directory import RunDirectory

    prepared = prepare(recipe, recipe.device)  # what does not fit leaves no directory behind
    with RunDirectory.create(output or default_output(recipe), recipe) as opened:
        with _open(opened, prepared) as session:
            yield session


@contextmanager
def later_session(
    path: Path,
    phase: Literal["quantize", "finetune"],
    overrides: list[str] | None,
    device: str | None,
    output: Path | None = None,
) -> Iterator[Any]:
    """Open a session for a run directory (or a fork of it), with other settings from `phase` on.

    `qpd quantize` may change `quantize.*`, `finetune.*` and `evaluation.*`, `qpd finetune` only
    `finetune.*`.
    """
    from qpd.phases.preparation import prepare
    from qpd.recipe.loading import override_recipe
    from qpd.runs.fork import fork_run
    from qpd.runs.run_directory import RunDirectory, RunDirectoryError
    from qpd.student_files.distilled import load_student

    changeable: tuple[str, ...] = ("finetune.",)
    if phase == "quantize":
        changeable = ("quantize.", "finetune.", "evaluation.", "name=")
    foreign = [line for line in overrides or [] if not line.startswith(changeable)]
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
        changed = override_recipe(opened.recipe, overrides or [])
        prepared = prepare(changed, device or changed.device)
        if output is not None:
            with fork_run(opened, output, changed) as fork, _open(fork, prepared) as session:
                yield session
            return
        if opened.phase(phase).state != "pending" and changed != opened.recipe:
            raise RunDirectoryError(
                [f"{path}: {phase} has begun with other settings; `qpd quantize {path} -o NEW`"],
                ErrorCode.RUN_OTHER_RECIPE,
            )
        opened.replace_recipe(changed)
        with _open(opened, prepared) as session:
            yield session


@contextmanager
def _open(opened: Any, prepared: Any) -> Iterator[Any]:
    from qpd.phases.session import open_session

    with progress() as display:
        session = open_session(opened, prepared, display)
        try:
            yield session
        finally:
            session.close()
