"""QPD: quantization-aware policy distillation for Stable-Baselines3 agents."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "load_student_policy"]

# Idle OpenMP threads must not spin: the emulators need the cores between two network passes.
# Read once, when torch loads its OpenMP library, hence here. On a busy 2-core machine the teacher's
# forward pass was several times faster for it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Ctrl-C while a command still imports ends it without a traceback; its main then takes over.
if Path(sys.argv[0]).stem == "qpd" or sys.orig_argv[1:3] == ["-m", "qpd.cli"]:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def __getattr__(name: str) -> Any:
    """`qpd.load_student_policy`, imported when asked for: it brings torch along."""
    if name == "load_student_policy":
        from qpd.student_files.predictor import load_student_policy

        return load_student_policy
    raise AttributeError(f"module 'qpd' has no attribute {name!r}")
