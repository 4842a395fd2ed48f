"""All phases of one recipe in one run directory: what `qpd run` and each cell of a sweep do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qpd.phases.distill import distill
from qpd.phases.evaluate import evaluate_run
from qpd.phases.finetune import finetune
from qpd.phases.preparation import prepare
from qpd.phases.quantize import quantize
from qpd.phases.shared_games import SharedGames
from qpd.phases.student_run import open_student
from qpd.phases.validation import plays_sharpened
from qpd.recipe.schema import Recipe
from qpd.recipe.training_phases import TrainingPhase
from qpd.runs.fork import adopt_distilled
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory
from qpd.runs.time_left import HearsWork, WorkAhead
from qpd.runs.training_run import is_training


@dataclass(frozen=True)
class DistilledElsewhere:
    """A run directory that has finished phase 1, and the folder of its memory (may be gone)."""

    run: Path
    store: Path


def default_output(recipe: Recipe) -> Path:
    """Return `runs/NAME`, or `runs/NAME-student` where `qpd train` left an agent of this name."""
    folder = Path("runs") / recipe.name
    return folder.with_name(f"{folder.name}-student") if is_training(folder) else folder


def run_all_phases(
    recipe: Recipe,
    path: Path,
    progress: Progress,
    source: DistilledElsewhere | None = None,
    shared_games: SharedGames | None = None,
) -> None:
    """Distil, quantize, finetune and evaluate; resume where an earlier call was interrupted.

    With `source`, phase 1 is taken from there; with `shared_games`, the games that another run has
    played already. Raises what `prepare` and RunDirectory do.
    """
    prepared = prepare(recipe, recipe.device)  # what does not fit leaves no directory behind
    with RunDirectory.create(path, recipe) as opened:
        if source is not None and opened.phase("distill").state != "done":
            adopt_distilled(RunDirectory.open(source.run, read_only=True), opened, source.store)
        if isinstance(progress, HearsWork):
            progress.work_ahead(work_ahead(recipe, opened, plays_sharpened(recipe, prepared)))
        with open_student(opened, prepared, progress) as (student, play):
            distill(student, play, progress)
            quantize(student, play, progress)
            finetune(student, play, progress)
            evaluate_run(student, progress, shared_games)
            if not recipe.save.keep_replay:
                play.discard()


def work_ahead(recipe: Recipe, run: RunDirectory, sharpened: bool) -> WorkAhead:
    """Return what the run still has to do; of a phase that has begun, all of it.

    `sharpened` says that the teacher is evaluated twice (`plays_sharpened`).
    """
    phases: dict[Literal["distill", "finetune"], TrainingPhase] = {
        "distill": recipe.distill,
        "finetune": recipe.finetune,
    }
    samples = {
        str(name): settings.epochs * settings.samples_in_epoch(recipe.replay.capacity)
        for name, settings in phases.items()
        if run.phase(name).state != "done"
    }
    policies = {"teacher", "distilled", "ptq", "qat"}
    policies |= {"teacher_sharpened"} if sharpened else set()
    unplayed = policies - set(run.manifest.evaluations)
    return WorkAhead(samples, recipe.evaluation.episodes * len(unplayed))
