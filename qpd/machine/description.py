"""A description of this machine: processor, cores, system, versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from qpd.version import __version__

PACKAGES = ("numpy", "torch", "stable-baselines3", "onnx", "onnxruntime", "ai-edge-litert")
COMPILERS, CXX_COMPILERS = ("gcc", "cc", "clang"), ("g++", "clang++", "c++")


def board() -> str | None:
    """Return the board's name, such as `Raspberry Pi 4 Model B`, if there is a device tree."""
    try:
        text = Path("/proc/device-tree/model").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Device tree strings end in a NUL byte.
    return text.strip("\0 \n") or None


def cpu_model() -> str:
    """Return the processor's name, or at least its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    # ARM kernels write no "model name": there the fallback is the architecture.
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), None) or platform.processor() or platform.machine()


def device_name() -> str:
    """Return this device's default name: its board, else its processor."""
    return board() or cpu_model()


def total_memory() -> int | None:
    """Return the bytes of memory; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return None


def system() -> str:
    """Return the operating system, its version, and the instruction set."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def versions() -> dict[str, str]:
    """Return the versions of Python, QPD, the installed runtimes and the C compiler."""
    found = {"python": platform.python_version(), "qpd": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    compiler = c_compiler()
    if compiler is not None:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
        found["compiler"] = next(iter(done.stdout.splitlines()), compiler)
    return found


def cxx_compiler() -> str | None:
    """Return the first C++ compiler found, the one that CXX names before all others."""
    names = [os.environ.get("CXX", ""), *CXX_COMPILERS]
    return next((name for name in names if name and shutil.which(name)), None)


def c_compiler() -> str | None:
    """Return the first C compiler found."""
    return next((name for name in COMPILERS if shutil.which(name)), None)
