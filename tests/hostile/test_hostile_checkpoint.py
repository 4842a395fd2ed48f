"""Checkpoints that somebody made up, or of another student: one line, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import write_safetensors
from qpd.phases.runner import initial_state
from qpd.recipe.training_phases import DistillSettings
from qpd.runs.checkpoint import (
    CheckpointError,
    checkpoint_file,
    load_checkpoint,
    restore_students,
    write_checkpoint,
)
from qpd.runs.run_directory import RunDirectory
from qpd.students import Student, StudentArchitecture
from qpd.training.state import PhaseState

RUN = Path(__file__).parents[2] / "runs-reference" / "classic-ppo-cartpole"
WHOLE = {"phase": "distill", "states": {}, "stream": {}, "metrics": {"": "phase,epoch\n"}}


@pytest.fixture
def run() -> RunDirectory:
    return RunDirectory.open(RUN, read_only=True)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("[]", "its state is no JSON object"),
        ("{}", "its state lacks phase, states, stream"),
        (json.dumps(WHOLE | {"states": [], "phase": 1}), "its state lacks phase, states"),
        (json.dumps(WHOLE | {"metrics": {"": [1]}}), "its metrics are no text"),
        ('{"phase": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_made_up_state(tmp_path: Path, run: RunDirectory, state: str, reason: str) -> None:
    write_safetensors(checkpoint_file(tmp_path), {"a": torch.zeros(1)}, {"state": state})
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_checkpoint(tmp_path, run)
    assert len(caught.value.lines) == 1 and caught.value.code is ErrorCode.RUN_CHECKPOINT


def test_one_without_metrics_is_read(tmp_path: Path, run: RunDirectory) -> None:
    write_checkpoint(tmp_path, {}, {k: v for k, v in WHOLE.items() if k != "metrics"})
    assert load_checkpoint(tmp_path, run) == ({}, WHOLE | {"metrics": {}})


class _Member:
    """As much of a student's run as `restore_students` looks at."""

    def __init__(self, run: RunDirectory) -> None:
        self.run, self.label = run, ""


def _state(width: int) -> PhaseState:
    module = Student(StudentArchitecture((4,), 2, (), (width,)))
    return initial_state(module, DistillSettings(), 0)


@pytest.mark.parametrize(
    ("width", "changes"),
    [
        (5, {}),  # another student's
        (3, {"epoch": None, "shuffle": "[]"}),
        (3, {"shuffle": "{}"}),
        (3, {"shuffle": 7}),
        (3, {"head_factor": "many"}),
        (3, {"floor": "low"}),
        (3, {"seconds": None, "best_score": None, "shuffle": '{"bit_generator": "os.system"}'}),
    ],
)
def test_a_state_that_does_not_fit(
    tmp_path: Path, run: RunDirectory, width: int, changes: dict[str, Any]
) -> None:
    tensors, plain = _state(width).state_dict()
    named = {f"/{name}": tensor for name, tensor in tensors.items()}
    write_checkpoint(tmp_path, named, WHOLE | {"states": {"": plain | changes}})
    member: Any = _Member(run)
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        restore_students(tmp_path, "distill", [(member, _state(3))])
    assert len(caught.value.lines) == 1 and "\n" not in caught.value.lines[0]


def test_one_that_fits_goes_on(tmp_path: Path, run: RunDirectory) -> None:
    before, after = _state(3), _state(3)
    before.epoch, before.head_factor = 7, 2.5
    tensors, plain = before.state_dict()
    named = {f"/{name}": tensor for name, tensor in tensors.items()}
    write_checkpoint(tmp_path, named, WHOLE | {"states": {"": plain}})
    member: Any = _Member(run)
    assert restore_students(tmp_path, "distill", [(member, after)])
    assert (after.epoch, after.head_factor) == (7, 2.5)
