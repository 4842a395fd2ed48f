"""A second run from the same distilled student: other bits, another scheme, one distillation."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import copy_file, write_text
from qpd.files.tensors import crc32_of
from qpd.recipe.schema import Recipe
from qpd.runs.checkpoint import load_checkpoint, write_checkpoint
from qpd.runs.metrics_log import read_lines
from qpd.runs.run_directory import RunDirectory, RunDirectoryError, read_manifest

# What does not depend on phases 2 and 3, and so holds for the fork too.
_KEPT_EVALUATIONS = ("teacher", "teacher_sharpened", "distilled")


def fork_run(source: RunDirectory, path: Path, recipe: Recipe) -> RunDirectory:
    """Make a run directory at `path` that has finished phase 1 as `source` did, with `recipe`.

    The memory is copied where `source` still has it; else it is filled anew when it is needed.
    What an earlier call made at `path` is gone on with. Raises RunDirectoryError where anything
    else is there, or a fork with another recipe.
    """
    origin = crc32_of(source.distilled_file.read_bytes())
    if (path / "manifest.json").is_file() and (
        path.samefile(source.path) or read_manifest(path).forked_from != origin
    ):
        raise RunDirectoryError(
            [f"{path}: exists already; choose another -o"], ErrorCode.OUTPUT_TAKEN
        )
    is_new = not path.exists()
    fork = RunDirectory.create(path, recipe, forked_from=origin)
    if fork.phase("distill").state == "done":
        return fork
    try:
        adopt_distilled(source, fork, source.path / "checkpoint")
    except BaseException:
        fork.close()
        if is_new:
            shutil.rmtree(path, ignore_errors=True)
        raise
    return fork


def adopt_distilled(source: RunDirectory, run: RunDirectory, store: Path) -> None:
    """Give `run` the finished phase 1 of `source`, and the memory in `store` where there is one.

    Phase 1 is recorded as done last of all, so what was interrupted can be done again.
    """
    if source.manifest.teacher is not None:
        run.record_teacher(source.manifest.teacher)
    copy_file(source.distilled_file, run.distilled_file)
    counted = source.exponents_file("distill")
    if counted.is_file():
        copy_file(counted, run.exponents_file("distill"))
    if source.metrics_file.is_file():
        kept = [
            line
            for line in read_lines(source.metrics_file)
            if line.startswith(("phase,", "distill,"))
        ]
        write_text(run.metrics_file, "".join(kept))
    saved = load_checkpoint(store, source)
    keeps_memory = saved is not None and (store / "replay.bin").is_file()
    if saved is not None and saved[1]["phase"] == "finetune" and source.recipe.finetune.reward:
        keeps_memory = False  # rollouts have overwritten it, an interrupted one in part
    is_renewed = False
    if saved is not None and keeps_memory:
        renews = source.recipe.replay.refresh_count > 0
        is_renewed = source.memory_refilled or (renews and saved[1]["phase"] == "finetune")
        shutil.copytree(store, run.checkpoint_folder, dirs_exist_ok=True, copy_function=copy_file)
        mode = run.checkpoint_folder.stat().st_mode
        run.checkpoint_folder.chmod(mode | stat.S_IRWXU)  # copied of a run that is read only
        tensors, plain = saved  # the play continues; a phase 3 of the source's does not
        metrics = {"": run.metrics_bytes().decode()}
        plain |= {"phase": "distill", "states": {}, "metrics": metrics}
        write_checkpoint(run.checkpoint_folder, tensors, plain)
    for name in _KEPT_EVALUATIONS:
        same = source.recipe.evaluation == run.recipe.evaluation
        if same and name in source.manifest.evaluations:
            result = source.manifest.evaluations[name]
            timeless = {key: value for key, value in result.items() if key != "seconds"}
            run.record_evaluation(name, timeless)
    known = source.phase("distill").metrics
    known.pop("memory_refilled", None)  # a fork's own
    if is_renewed:
        known["memory_refilled"] = True
    if source.manifest.first_code != run.manifest.code:
        known["code"] = source.manifest.first_code
    run.set_phase("distill", "done", **{**known, "keeps_memory": keeps_memory})
