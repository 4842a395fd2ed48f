"""Student networks: float architectures only; quantization lives in `qpd.quantization`."""

from qpd.students.architecture import LayerShape, StudentArchitecture
from qpd.students.size_grid import SIZE_GRID, architecture_for
from qpd.students.student import Student, StudentOutputs

__all__ = [
    "SIZE_GRID",
    "LayerShape",
    "Student",
    "StudentArchitecture",
    "StudentOutputs",
    "architecture_for",
]
