"""Checkpoints: one file, replaced atomically, that a killed run goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_safetensors, write_text
from qpd.files.json_input import parse_json
from qpd.files.tensors import DamagedFileError, read_tensors
from qpd.runs.run_directory import RunDirectory

# What a checkpoint of another student, or one that somebody made up, raises when it is restored.
UNFIT = (ValueError, RuntimeError, KeyError, TypeError, AttributeError, IndexError, OverflowError)


def checkpoint_file(folder: Path) -> Path:
    """The file of the checkpoint in `folder`; without it phase 1 starts anew."""
    return folder / "state.safetensors"


class CheckpointError(UserError, ValueError):
    """A checkpoint that cannot be used; one line names the file and the way on."""

    code = ErrorCode.RUN_CHECKPOINT

    @classmethod
    def of(cls, file: Path, reason: str, run: RunDirectory) -> CheckpointError:
        """`file`, of the checkpoint of `run`, cannot be used for this `reason`."""
        way = f"delete the folder {file.parent} "
        if run.phase("distill").state == "done":  # the memory of phase 1 cannot be played again
            way += f"and go on from the finished phase 1, on new games: `qpd quantize {run.path} "
            way += "-o NEW`, then `qpd finetune NEW`"
        else:
            way += "to start phase 1 anew"
        return cls(f"{file}: {reason}; put a copy of it back, or {way}")


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Replace the checkpoint by these tensors and this plain (JSON) state."""
    write_safetensors(checkpoint_file(folder), tensors, {"state": json.dumps(plain)})


def load_checkpoint(
    folder: Path, run: RunDirectory
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and plain state in `folder`; None where there is no checkpoint.

    Raises CheckpointError where it is damaged; `run` is whose it is.
    """
    path = checkpoint_file(folder)
    if not path.is_file():
        return None
    try:
        metadata, tensors = read_tensors(path)
        return tensors, _checked(parse_json(metadata["state"]))
    except (DamagedFileError, KeyError, ValueError, OSError) as error:
        raise CheckpointError.of(path, f"is damaged ({error})", run) from error


def _checked(plain: Any) -> dict[str, Any]:
    """What `qpd.phases.runner.save` writes; ValueError for anything else."""
    kinds = {"phase": str, "states": dict, "stream": dict, "metrics": dict}
    if not isinstance(plain, dict):
        raise ValueError("its state is no JSON object")
    plain = {"metrics": {}, **plain}  # which older ones do not hold
    wrong = [name for name, kind in kinds.items() if not isinstance(plain.get(name), kind)]
    if wrong:
        raise ValueError(f"its state lacks {', '.join(wrong)}")
    if not all(isinstance(rows, str) for rows in plain["metrics"].values()):
        raise ValueError("its metrics are no text")
    return plain


def load_needed_checkpoint(
    folder: Path, run: RunDirectory
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The same, where the next phase of `run` goes on from it.

    Raises CheckpointError also where there is none although a phase left one.
    """
    saved = load_checkpoint(folder, run)
    if saved is None and run.keeps_memory:
        raise CheckpointError.of(checkpoint_file(folder), "is missing", run)
    return saved


def restore_metrics(folder: Path, run: RunDirectory, label: str) -> None:
    """Make metrics.csv of `run` what it was when the checkpoint in `folder` was written.

    `label` is the run's among those that share the checkpoint.
    """
    try:
        saved = load_checkpoint(folder, run)
    except CheckpointError:  # told by the phase that needs the checkpoint, if one does
        return
    rows = saved[1]["metrics"].get(label) if saved is not None else None
    if rows is not None and run.metrics_bytes() != rows.encode():
        write_text(run.metrics_file, rows)
