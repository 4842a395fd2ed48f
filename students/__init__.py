"""Student networks: float architectures only; quantization lives in `qpd.quantization`."""

from students.architecture import LayerShape, StudentArchitecture
from students.size_grid import SIZE_GRID, architecture_for
from students.student import Student, StudentOutputs

__all__ = [
    "SIZE_GRID",
    "LayerShape",
    "Student",
    "StudentArchitecture",
    "StudentOutputs",
    "architecture_for",
]
