"""The reader that lies beside a student.bin, as a stranger has it, for the tests of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from qpd.export.bundle import ExportSource, golden_vectors, write_bundle
from qpd.export.c.binary import export_bin
from qpd.integer.integer_student import IntegerStudent, reference_outputs


def reader(folder: Path) -> ModuleType:
    """The reader as a stranger has it: from the exported folder."""
    spec = importlib.util.spec_from_file_location("qpd_bin", folder / "qpd_bin.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["qpd_bin"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def exported(folder: Path, student: IntegerStudent) -> Path:
    source = ExportSource(student, {}, "test")
    write_bundle(folder, "bin", source, export_bin(source, golden_vectors(student)))
    return folder


def check_reader(student: IntegerStudent, folder: Path) -> None:
    qpd_bin = reader(exported(folder, student))
    observations = golden_vectors(student, 4).observations
    if count := student.architecture.num_features:
        unusual = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32)
        observations[0, -count:] = np.resize(unusual, count)
        observations[1:, :-count] += np.float32(0.75)  # pixels of an image that was resized
    read = qpd_bin.load(folder / "student.bin")
    got = qpd_bin.integer_outputs(read, observations)
    assert got.dtype == np.int32
    assert (got == reference_outputs(student, observations)).all()
    assert len(np.unique(got, axis=0)) > 8 and read.logit_scale == student.output_scale
