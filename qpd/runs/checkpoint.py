"""The checkpoint of a training phase: one file, replaced atomically, that killed runs resume from.

`state.safetensors` in the checkpoint folder holds everything that resuming needs but the frames,
which lie beside it in `replay.bin`, and phase 2's student in floats, `calibrated.safetensors`, from
which phase 3 starts:

- tensors `replay.*` and `environment.*`: the memory's columns and the emulators' states;
- tensors `LABEL/model.*`, `LABEL/best.*`, `LABEL/optimizer.*` of each student in training (LABEL is
  empty unless several students share the play);
- as JSON: `phase`, `stream` (random state, frame bytes), `states` (a student's epoch, best score,
  learning rate scale, random state ...) and `metrics` (the text of each student's metrics.csv).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from qpd.environments.errors import EnvironmentRunError
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_safetensors, write_text
from qpd.files.json_input import parse_json
from qpd.files.tensors import DamagedFileError, read_tensors
from qpd.replay.play_stream import PlayStream
from qpd.runs.manifest import PhaseName
from qpd.runs.run_directory import RunDirectory

# What a checkpoint of another student, or one that somebody made up, raises when it is restored.
UNFIT = (ValueError, RuntimeError, KeyError, TypeError, AttributeError, IndexError, OverflowError)


class CheckpointError(UserError, ValueError):
    """A checkpoint that cannot be used; one line names the file and the remedy."""

    code = ErrorCode.RUN_CHECKPOINT

    @classmethod
    def of(cls, file: Path, reason: str, run: RunDirectory) -> CheckpointError:
        """Say that `file`, of the checkpoint of `run`, cannot be used for this `reason`."""
        way = f"delete the folder {file.parent} "
        if run.phase("distill").state == "done":  # the memory of phase 1 cannot be played again
            way += f"and go on from the finished phase 1, on new games: `qpd quantize {run.path} "
            way += "-o NEW`, then `qpd finetune NEW`"
        else:
            way += "to start phase 1 anew"
        return cls(f"{file}: {reason}; put a copy of it back, or {way}")


class Resumable(Protocol):
    """A student in training, as a checkpoint saves it (see `qpd.training.state`)."""

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors, and what JSON can hold."""

    def load_state_dict(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class CheckpointedStudent(Protocol):
    """A student's run directory, and its label among those that share a play."""

    @property
    def run(self) -> RunDirectory:
        """Its run directory."""

    @property
    def label(self) -> str:
        """Empty for a student alone."""


def checkpoint_file(folder: Path) -> Path:
    """Return the checkpoint's file in `folder`; without it phase 1 starts anew."""
    return folder / "state.safetensors"


def save_checkpoint(
    folder: Path,
    phase: PhaseName,
    stream: PlayStream,
    students: Sequence[tuple[CheckpointedStudent, Resumable | None]],
) -> None:
    """Replace the checkpoint in `folder` by the present state of the stream and of its students.

    A student without a state (phase 2) has only its metrics saved. Raises OSError.
    """
    tensors, plain_stream = stream.state_dict()
    states: dict[str, Any] = {}
    for student, state in students:
        if state is not None:
            own, states[student.label] = state.state_dict()
            tensors |= {f"{student.label}/{name}": tensor for name, tensor in own.items()}
    metrics = {student.label: student.run.metrics_bytes().decode() for student, _ in students}
    # The frames go to the disk first: a checkpoint must never refer to frames that a power cut
    # could still take away.
    stream.memory.sync()
    plain = {"phase": phase, "states": states, "stream": plain_stream, "metrics": metrics}
    write_checkpoint(folder, tensors, plain)


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Write a checkpoint's tensors and plain (JSON) state, atomically."""
    write_safetensors(checkpoint_file(folder), tensors, {"state": json.dumps(plain)})


def restore_students(
    folder: Path,
    phase: PhaseName,
    students: Sequence[tuple[CheckpointedStudent, Resumable]],
) -> bool:
    """Load the checkpoint into the students' states; return whether it belongs to this phase.

    Raises CheckpointError where it does not fit.
    """
    run = students[0][0].run
    saved = load_needed_checkpoint(folder, run)
    if saved is None or saved[1]["phase"] != phase:
        return False
    tensors, plain = saved
    for student, state in students:
        prefix = f"{student.label}/"
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        try:
            state.load_state_dict(own, plain["states"][student.label])
        except UNFIT as error:
            reason = f"does not fit ({error!r:.200})"
            raise CheckpointError.of(checkpoint_file(folder), reason, student.run) from error
    return True


def open_stream(
    folder: Path, run: RunDirectory, make_stream: Callable[[Path], PlayStream]
) -> PlayStream:
    """Make the play stream of a run and bring it to where the checkpoint in `folder` left it.

    `make_stream` gets the frame file's path. Raises CheckpointError where frames or state are
    missing or damaged; nothing is restored where there is no checkpoint.
    """
    frames = folder / "replay.bin"
    saved = load_needed_checkpoint(folder, run)
    size = frames.stat().st_size if frames.is_file() else None
    # Checked before the stream is made, which would replace a file of another size.
    if saved is not None and size != saved[1]["stream"].get("frame_bytes"):
        raise CheckpointError.of(frames, "is missing or has another size", run)
    stream = make_stream(frames)
    if saved is None:
        return stream
    tensors, plain = saved
    # Phase 3 with rewards draws from its latest rollout alone, and an interrupted rollout has
    # overwritten older frames: those are not checked.
    draws_memory = plain["phase"] != "finetune" or run.recipe.finetune.reward is None
    try:
        stream.load_state_dict(tensors, plain["stream"])
        stream.memory.check_frames(drawn=draws_memory)
    except DamagedFileError as error:
        stream.close()
        raise CheckpointError.of(frames, f"is damaged ({error})", run) from error
    except EnvironmentRunError:  # while its games are played again: the checkpoint is whole
        stream.close()
        raise
    except UNFIT as error:
        stream.close()
        reason = f"does not fit ({error!r:.200})"
        raise CheckpointError.of(checkpoint_file(folder), reason, run) from error
    except BaseException:  # Ctrl-C while gigabytes of frames are checked
        stream.close()
        raise
    return stream


def load_checkpoint(
    folder: Path, run: RunDirectory
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return tensors and plain state of the checkpoint in `folder`; None where there is none.

    Raises CheckpointError where it is damaged; `run` is the one it belongs to.
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
    """Return the plain state with the types that `save_checkpoint` writes; ValueError otherwise."""
    kinds = {"phase": str, "states": dict, "stream": dict, "metrics": dict}
    if not isinstance(plain, dict):
        raise ValueError("its state is no JSON object")
    plain = {"metrics": {}, **plain}  # older checkpoints do not hold metrics
    wrong = [name for name, kind in kinds.items() if not isinstance(plain.get(name), kind)]
    if wrong:
        raise ValueError(f"its state lacks {', '.join(wrong)}")
    if not all(isinstance(rows, str) for rows in plain["metrics"].values()):
        raise ValueError("its metrics are no text")
    return plain


def load_needed_checkpoint(
    folder: Path, run: RunDirectory
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Load the checkpoint that the next phase of `run` continues from.

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
