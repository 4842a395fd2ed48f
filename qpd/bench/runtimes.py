"""The runtimes: each turns a model into files in a folder, then into a runner to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qpd.actions import Box
from qpd.bench.answers import Wanted, labels_of_outputs, sb3_actions
from qpd.bench.c_program import CProgram
from qpd.bench.contestant import Contestant, ContestantError, MissingError, WrongAnswerError
from qpd.bench.device_record import FP32, GoldenCheck
from qpd.bench.models import BenchModel
from qpd.bench.plain_network import PlainNetwork, exact_logits
from qpd.bench.teachers import BenchTeacher
from qpd.bench.worker_process import WorkerProcess
from qpd.export.bundle import ExportError, GoldenVectors
from qpd.export.device_actions import environment_actions
from qpd.machine.description import cxx_compiler
from qpd.student_files.distilled import save_student
from qpd.version import pip_install

BASELINE = "torch"  # the teacher in PyTorch eager: every ratio's denominator
PREDICT = "sb3-predict"  # what a user of the teacher calls: policy.predict
SB3, QPD = "SB3", "QPD"  # the `kernels` of the baseline: whose module it is
NO_CXX = "torch.compile needs a C++ compiler: g++, clang++ or c++"
# Of the logits' spread. Quantized graphs round a level the other way now and then; what a compiler
# or a kernel gets wrong is far larger. fp32 has 24 bits, and sums in another order.
QUANTIZED_TOLERANCE, FLOAT_TOLERANCE = 0.02, 1e-3


@dataclass(frozen=True)
class Task:
    """Golden observations, the observations to time, and a folder for one contestant.

    `golden` and `timed` are uint8 `[n, 4, 84, 84]` or float32 `[n, features]`.
    """

    golden: np.ndarray
    timed: np.ndarray
    folder: Path


@dataclass(frozen=True)
class Runtime:
    """A runtime; `start` gives a contestant its runner, or raises ContestantError."""

    start: Callable[..., None]  # of the contestant, its Task, and model=the BenchModel
    is_quantized: bool = True
    runs_teacher: bool = False
    has_threads: bool = True


def start_student(
    runtime: str, model: BenchModel, threads: int, folder: Path, frames: np.ndarray
) -> Contestant:
    """Start `model` in `runtime`, to be timed on `frames` (uint8 `[n, 4, 84, 84]`).

    If that fails, the contestant's `error` tells why; nothing is raised.
    """
    bits = model.weight_bits if RUNTIMES[runtime].is_quantized else FP32
    contestant = Contestant(runtime, model.name, model.size, bits, threads)
    task = Task(model.observations, model.timed_on(frames), folder)
    return _started(contestant, task, partial(RUNTIMES[runtime].start, model=model))


def start_teacher(
    runtime: str, teacher: BenchTeacher, threads: int, folder: Path, observations: np.ndarray
) -> Contestant:
    """Start `teacher` in `runtime`: `torch`, `torch-compile` or `sb3-predict`.

    It is checked and timed on `observations`, uint8 `[n, 4, 84, 84]` or float32 `[n, features]`.
    """
    contestant = Contestant(runtime, teacher.name, teacher.size, FP32, threads)
    task = Task(observations, observations, folder)
    return _started(contestant, task, partial(_start_teacher, found=teacher))


def _started(
    contestant: Contestant, task: Task, start: Callable[[Contestant, Task], None]
) -> Contestant:
    task.folder.mkdir(parents=True, exist_ok=True)
    try:
        start(contestant, task)
    except ContestantError as error:
        contestant.give_up(error)
    except ExportError as error:  # a package is missing, or the student does not fit the format
        contestant.give_up(MissingError(str(error)))
    return contestant


def _start_teacher(contestant: Contestant, task: Task, found: BenchTeacher) -> None:
    compiled = contestant.runtime == "torch-compile"
    if compiled and cxx_compiler() is None:
        raise MissingError(NO_CXX)
    teacher = found.teacher
    # Its weights as fp32 tensors; the zip has an optimizer's state and a pickled policy besides.
    contestant.file_bytes = 4 * teacher.num_parameters
    # Judged by float64: two fp32 runtimes sum in different orders, and neither is the truth.
    inputs = teacher.preprocess(torch.from_numpy(task.golden))
    outputs = exact_logits(teacher.network, inputs.double())
    wanted = Wanted(labels_of_outputs(teacher.actions, outputs), teacher.actions)
    settings = found.settings.model_dump()
    mine = {"kind": "torch", "file": None, "compiled": compiled, "teacher": settings}
    if contestant.runtime == PREDICT:
        spec = {"kind": PREDICT, "teacher": settings}
        _start_worker(contestant, task, spec, wanted.as_actions(), FLOAT_TOLERANCE)
    elif compiled:
        _start_worker(contestant, task, mine, wanted, FLOAT_TOLERANCE)
    else:
        sb3 = {"kind": "sb3", "teacher": settings}
        _start_baseline(contestant, task, sb3, mine, wanted, teacher.algo)


def _start_baseline(
    contestant: Contestant,
    task: Task,
    sb3: dict[str, Any],
    mine: dict[str, Any],
    wanted: Wanted,
    algo: str,
) -> None:
    """Start SB3's own policy; if it cannot be built here, QPD's module of the same layers."""
    theirs = wanted
    if isinstance(wanted.actions, Box):  # each algorithm's policy returns its own form of them
        theirs = wanted.as_actions(partial(sb3_actions, wanted.actions, algo))
    try:
        _start_worker(contestant, task, sb3, theirs, FLOAT_TOLERANCE)
        contestant.kernels = SB3
    except WrongAnswerError:
        raise
    except ContestantError:  # the row of `predict` gives the reason
        _start_worker(contestant, task, mine, wanted, FLOAT_TOLERANCE)
        contestant.kernels = QPD


def _start_torch(
    contestant: Contestant, task: Task, model: BenchModel, compiled: bool = False
) -> None:
    if compiled and cxx_compiler() is None:
        raise MissingError(NO_CXX)
    file = task.folder / "float.safetensors"
    save_student(file, model.student, model.source.student.actions, {})
    contestant.file_bytes = file.stat().st_size
    spec = {"kind": "torch", "file": str(file), "compiled": compiled}
    outputs = exact_logits(PlainNetwork(model.student), torch.from_numpy(task.golden)).numpy()
    _start_worker(contestant, task, spec, Wanted(outputs, model.actions), FLOAT_TOLERANCE)


def _start_onnx(contestant: Contestant, task: Task, model: BenchModel, name: str) -> None:
    _require("onnxruntime", f"onnxruntime is missing: {pip_install('onnx')}")
    from qpd.export.onnx_graph import export_onnx

    file = task.folder / name
    file.write_bytes(export_onnx(model.source, _golden(model))[name])
    contestant.file_bytes = file.stat().st_size
    _start_quantized(contestant, task, model, {"kind": "onnx", "file": str(file)})


def _start_litert(contestant: Contestant, task: Task, model: BenchModel) -> None:
    from qpd.export.litert_flatbuffer import export_litert

    file = task.folder / "student.tflite"
    file.write_bytes(export_litert(model.source, _golden(model))["student.tflite"])
    contestant.file_bytes = file.stat().st_size
    _start_quantized(contestant, task, model, {"kind": "litert", "file": str(file)})


def _start_c(contestant: Contestant, task: Task, model: BenchModel, portable: bool) -> None:
    from qpd.export.c.code import export_c

    for name, content in export_c(model.source, _golden(model)).items():
        (task.folder / name).write_bytes(content)
    observations = task.folder / "observations.bin"
    # The C program reads levels: for vectors the agent does Eq. 4 before, for frames it is the
    # identity.
    observations.write_bytes(model.source.student.encode(task.timed).tobytes())
    program = CProgram(task.folder, portable, observations)
    contestant.runner, contestant.kernels = program, str(program.line["kernels"])
    contestant.file_bytes = int(program.line["constant_bytes"])


def _start_quantized(
    contestant: Contestant, task: Task, model: BenchModel, spec: dict[str, Any]
) -> None:
    student = model.source.student
    wanted = Wanted(model.integer_outputs * np.float64(student.output_scale), model.actions)
    if isinstance(model.actions, Box):  # these graphs end in actions, which the codes stand for
        actions = environment_actions(student, model.integer_outputs)
        wanted = Wanted(actions, model.actions, are_actions=True)
    _start_worker(contestant, task, spec, wanted, QUANTIZED_TOLERANCE)


def _start_worker(
    contestant: Contestant,
    task: Task,
    spec: dict[str, Any],
    wanted: Wanted,
    tolerance: float,
) -> None:
    """Start a worker and check its golden answers against `wanted`.

    Raises ContestantError, or WrongAnswerError beyond `tolerance`.
    """
    files = {}
    for name, observations in (("golden", task.golden), ("timed", task.timed)):
        files[name] = str(task.folder / f"{name}.npy")
        np.save(files[name], observations)
    worker = WorkerProcess(spec | files | {"threads": contestant.threads})
    contestant.runner = worker
    contestant.check = wanted.compared(worker.logits)
    try:
        refuse_wrong(contestant.check, tolerance)
    except WrongAnswerError:
        contestant.close()
        raise


def refuse_wrong(check: GoldenCheck, tolerance: float) -> None:
    """Raise WrongAnswerError if the largest error is beyond `tolerance`."""
    if check.largest_error > tolerance:
        raise WrongAnswerError(
            f"computes something else: outputs are off by {check.largest_error:.1%} of their "
            f"spread, the action is the same for {check.same_actions} of {check.vectors} "
            "golden vectors"
        )


def _golden(model: BenchModel) -> GoldenVectors:
    return GoldenVectors(model.observations, model.integer_outputs)


def _require(module: str, message: str) -> None:
    if find_spec(module) is None:
        raise MissingError(message)


RUNTIMES = {
    "torch": Runtime(_start_torch, is_quantized=False, runs_teacher=True),
    "torch-compile": Runtime(
        partial(_start_torch, compiled=True), is_quantized=False, runs_teacher=True
    ),
    "onnx-fp32": Runtime(partial(_start_onnx, name="student_fp32.onnx"), is_quantized=False),
    "onnx-int8": Runtime(partial(_start_onnx, name="student_int8.onnx")),
    "litert-int8": Runtime(_start_litert),
    "c": Runtime(partial(_start_c, portable=True), has_threads=False),
    "c-simd": Runtime(partial(_start_c, portable=False), has_threads=False),
}
