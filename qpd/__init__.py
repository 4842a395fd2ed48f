"""QPD: quantization-aware policy distillation for Stable-Baselines3 agents."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.version import __version__

if TYPE_CHECKING:
    from qpd.api import (
        distill,
        evaluate,
        export_student,
        finetune,
        open_run,
        quantize,
        quantize_agents,
        run,
        train,
    )
    from qpd.errors.user_error import UserError
    from qpd.recipe.loading import load_recipe
    from qpd.runs.progress import TerminalProgress
    from qpd.student_files.predictor import load_student_policy
    from qpd.teachers import load_teacher

__all__ = [
    "TerminalProgress",
    "UserError",
    "__version__",
    "distill",
    "evaluate",
    "export_student",
    "finetune",
    "load_recipe",
    "load_student_policy",
    "load_teacher",
    "open_run",
    "quantize",
    "quantize_agents",
    "run",
    "train",
]

# Idle OpenMP threads must not spin: the emulators need the cores between two network passes.
# Read once, when torch loads its OpenMP library, hence here. On a busy 2-core machine the teacher's
# forward pass was several times faster for it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Ctrl-C while a command still imports ends it without a traceback; its main then takes over.
if Path(sys.argv[0]).stem == "qpd" or sys.orig_argv[1:3] == ["-m", "qpd.cli"]:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Git writes links as text files where it may not make any: Windows without its developer mode.
if (Path(__file__).parent / "teachers").is_file():
    raise ImportError(
        "qpd/teachers is a text file, not a link: git config core.symlinks true, then clone anew or"
        " git checkout -f HEAD (on Windows in developer mode); or install QPD's wheel"
    )

# Imported when first asked for: they bring torch along, which `qpd --help` need not wait for.
_LAZY = {
    "TerminalProgress": "qpd.runs.progress",
    "UserError": "qpd.errors.user_error",
    "distill": "qpd.api",
    "evaluate": "qpd.api",
    "export_student": "qpd.api",
    "finetune": "qpd.api",
    "load_recipe": "qpd.recipe.loading",
    "load_student_policy": "qpd.student_files.predictor",
    "load_teacher": "qpd.teachers",
    "open_run": "qpd.api",
    "quantize": "qpd.api",
    "quantize_agents": "qpd.api",
    "run": "qpd.api",
    "train": "qpd.api",
}


def __getattr__(name: str) -> Any:
    """Return a function of the Python API, importing its module."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'qpd' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the API for completion."""
    return sorted({*globals(), *__all__})
