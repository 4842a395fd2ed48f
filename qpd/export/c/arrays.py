"""Numbers as C source: arrays and literals."""

from __future__ import annotations

import numpy as np


def c_array(declaration: str, values: np.ndarray) -> str:
    """Return the definition of an array of integers, in lines of 32 numbers."""
    flat = [str(value) for value in values.reshape(-1).tolist()]
    # Wrapped, as C99 guarantees only 4,095 characters per line.
    rows = [",".join(flat[i : i + 32]) for i in range(0, len(flat), 32)]
    return f"{declaration}[{len(flat)}] = {{\n" + ",\n".join(rows) + "};\n"


def c_floats(declaration: str, values: np.ndarray) -> str:
    """Return the definition of an array of finite float32."""
    literals = [c_float(value) for value in values.reshape(-1)]
    rows = [", ".join(literals[i : i + 8]) for i in range(0, len(literals), 8)]
    return f"{declaration}[{len(literals)}] = {{\n" + ",\n".join(rows) + "};\n"


def c_float(value: np.float32) -> str:
    """Write a float32 as the shortest C literal that reads back as the same number."""
    return f"{value!s}f"
