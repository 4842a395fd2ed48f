"""Models to benchmark: the students of runs, and random ones of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from qpd.actions import ActionSpace, Discrete
from qpd.bench.device_record import BenchError
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.export.bundle import ExportSource, golden_vectors, load_export_source
from qpd.integer.integer_student import IntegerStudent, integer_student
from qpd.quantization.calibration import calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.student_files.distilled import load_student
from qpd.students import SIZE_GRID, Student, StudentArchitecture, architecture_for

BREAKOUT = ((4, 84, 84), 4)  # observation shape and number of actions of random students
NUM_OBSERVATIONS = 8
_OF_ACTIONS = 0.05  # of the parameters; sizes differ far more than numbers of actions (2 to 18)


@dataclass(frozen=True)
class BenchModel:
    """A student in float and in integers, with its golden vectors.

    `observations` are uint8 `[n, c, h, w]` or float32 `[n, features]`; `integer_outputs`, int32
    `[n, num_outputs]`, are the integers' accumulators of the head. `path` is where it was loaded
    from, None for a random student.
    """

    name: str
    size: str | None
    student: Student
    source: ExportSource
    observations: np.ndarray
    integer_outputs: np.ndarray
    path: Path | None = None

    def timed_on(self, frames: np.ndarray) -> np.ndarray:
        """Return what to time: `frames` if it sees Atari's, else its golden vectors."""
        return frames if self.student.architecture.stacks_frames else self.observations

    @property
    def actions(self) -> ActionSpace:
        """The actions, and what the outputs of the float student mean."""
        return self.source.student.actions

    @property
    def weight_bits(self) -> int:
        """The fewest bits of any layer's weights."""
        return min(layer.bits for layer in self.source.student.layers)


def random_model(size: str, seed: int = 0) -> BenchModel:
    """Make an untrained 8-bit student, which is as fast as a trained one of its size.

    Raises BenchError for a size that is not in the grid.
    """
    if size not in SIZE_GRID:
        raise BenchError(
            f"--sizes {size}: one of {', '.join(SIZE_GRID)}, or all{did_you_mean(size, SIZE_GRID)}",
            ErrorCode.COMMAND_LINE,
        )
    student = Student(architecture_for(size, *BREAKOUT), seed)
    frames = torch.randint(
        0, 256, (4, *BREAKOUT[0]), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    simulation = QuantizedStudent(student, QuantizationConfig())
    # Noise will do: ranges have to be set for the integers to exist, and nobody plays with them.
    calibrate(simulation, frames)
    return _model(
        student, ExportSource(integer_student(simulation, Discrete(BREAKOUT[1])), {}, size), size
    )


def run_model(path: Path) -> BenchModel:
    """Load the student of a run directory or a quantized.safetensors.

    If its full-precision student was not kept, a random one of the same shape takes its place; a
    neighbour of another shape is not it.
    Raises StudentFileError.
    """
    source = load_export_source(path)
    architecture = source.student.architecture
    distilled = (path if path.is_dir() else path.parent) / "distilled.safetensors"
    student = load_student(distilled) if distilled.is_file() else None
    if student is None or student.architecture != architecture:
        student = _random_student(source.student)
    return _model(student, source, size_name(architecture), path)


def distinctly_named(models: list[BenchModel], taken: Sequence[str] = ()) -> list[BenchModel]:
    """Name students of runs by more of their paths where folders have one name, or one of `taken`.

    Raises BenchError for one that is given twice.
    """
    paths = [(each.path or Path(each.name)).resolve() for each in models]
    twice = [str(models[place].path) for place, path in enumerate(paths) if path in paths[:place]]
    if twice:
        raise BenchError(f"{twice[0]}: is given twice", ErrorCode.COMMAND_LINE)
    names = [each.name for each in models]
    parts = 1
    while len({*names, *taken}) < len(names) + len(taken):  # ends with the whole paths
        parts += 1
        names = [
            name if [*names, *taken].count(name) == 1 else "/".join(path.parts[-parts:])
            for name, path in zip(names, paths, strict=True)
        ]
    return [replace(each, name=name) for each, name in zip(models, names, strict=True)]


def size_name(architecture: StudentArchitecture) -> str | None:
    """Return the grid's name for the architecture, whatever its number of actions, or None."""
    for name in SIZE_GRID:
        if architecture.image_shape is not None and architecture == architecture_for(
            name,
            architecture.observation_shape,
            architecture.num_outputs,
            stacks_frames=architecture.stacks_frames,
            image_shape=architecture.image_shape,
        ):
            return name
    return None


def is_of_grid(size: str | None, parameters: float) -> bool:
    """Tell whether a student is the grid's for Atari frames, whatever its number of actions.

    That is what `--sizes` measures; of other images or vectors a size is another network.
    """
    if size not in SIZE_GRID:
        return False
    usual = architecture_for(size, *BREAKOUT).num_parameters
    return abs(parameters - usual) <= _OF_ACTIONS * usual


def _random_student(integers: IntegerStudent) -> Student:
    student = Student(integers.architecture)
    # The range scales vectors before the first layer; without it the float student would not even
    # accept them.
    if integers.input_low is not None and integers.input_high is not None:
        low, high = torch.from_numpy(integers.input_low), torch.from_numpy(integers.input_high)
        student.set_input_range(low, high)
    return student


def _model(
    student: Student, source: ExportSource, size: str | None, path: Path | None = None
) -> BenchModel:
    golden = golden_vectors(source.student, n=NUM_OBSERVATIONS)
    observations, logits = golden.observations, golden.logits
    return BenchModel(source.name, size, student, source, observations, logits, path)
