"""The C export written, compiled and called, for the tests of it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from qpd.actions import Box
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.c.code import export_c
from qpd.integer.integer_student import IntegerStudent

MACHINE = Path(__file__).resolve().parents[2] / "benchmarks" / "device" / "cortex_m"
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror"]
KERNELS = {"native": ["-march=native"], "portable": ["-DQPD_PORTABLE"]}
LIBRARY = ["qpd_network.c", "qpd_actions.c", "qpd_encode.c"]  # from floats to actions
# An export has those of these that its observations and actions need.
SOURCES = [f"qpd_{part}.c" for part in ("network", "actions", "encode", "sample", "preprocess")]
BARE = ["-mthumb", "-T", str(MACHINE / "mps2.ld"), "--specs=rdimon.specs", str(MACHINE / "boot.c")]
EMULATED = ["-nographic", "-semihosting-config", "enable=on,target=native", "-kernel"]
# name -> compiler, what runs its program
TARGETS = {
    "x86-64": (["gcc", "-O3"], []),
    "sanitized": (["gcc", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"], []),
    "aarch64": (["aarch64-linux-gnu-gcc", "-static"], ["qemu-aarch64-static"]),
    "armhf": (["arm-linux-gnueabihf-gcc", "-static"], ["qemu-arm-static"]),
    "cortex-m4": (
        ["arm-none-eabi-gcc", "-mcpu=cortex-m4", *BARE],
        ["qemu-system-arm", "-M", "mps2-an386", *EMULATED],
    ),
    "cortex-m0": (  # its code, on the emulated M3, which knows all its instructions
        ["arm-none-eabi-gcc", "-mcpu=cortex-m0", *BARE],
        ["qemu-system-arm", "-M", "mps2-an385", *EMULATED],
    ),
}
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def needs(*tools: str) -> None:
    """Skip the test if a tool is missing."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def write_c(
    folder: Path,
    student: IntegerStudent,
    num_vectors: int | None = None,
    observations: np.ndarray | None = None,
) -> Path:
    """Write the export into a new folder, with golden vectors as `golden_vectors` makes them."""
    folder.mkdir()
    golden = golden_vectors(student, 0, num_vectors, observations)
    for name, content in export_c(ExportSource(student, {}, "test"), golden).items():
        (folder / name).write_bytes(content)
    return folder


def c_library(folder: Path, student: IntegerStudent, flags: Sequence[str]) -> ctypes.CDLL:
    """The export in `folder` as a shared library; test_c_export_proof.py has -O3: it is slow."""
    sources = [name for name in SOURCES if (folder / name).exists()]
    name = f"student{abs(hash(tuple(flags)))}.so"
    command = ["gcc", *WARNINGS, "-O1", *flags, "-shared", "-fPIC", "-o", name, *sources]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / name))
    if isinstance(student.actions, Box):
        library.qpd_action_value.restype = ctypes.c_float
        library.qpd_action_value.argtypes = [ctypes.c_uint8, ctypes.c_uint16]
        library.qpd_action_scaled.restype = ctypes.c_int32
        library.qpd_action_scaled.argtypes = [ctypes.c_uint8, ctypes.c_int32, ctypes.c_int32]
    return library


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """The address of an array's first number."""
    return array.ctypes.data_as(ctypes.c_void_p)


def c_logits(library: ctypes.CDLL, student: IntegerStudent, observations: np.ndarray) -> np.ndarray:
    """int32 `[n, actions]`, and a check that qpd_act returns the argmax."""
    logits = np.zeros((len(observations), student.architecture.num_outputs), dtype=np.int32)
    levels = np.ascontiguousarray(student.encode(observations))
    for level, row in zip(levels, logits, strict=True):
        assert library.qpd_act(pointer(level), pointer(row)) == row.argmax()
    return logits
