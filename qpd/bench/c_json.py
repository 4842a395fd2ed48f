"""Conversion of the C export's benchmark output (a line per student) to a device's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qpd.bench.timed_calls import TimedTurn
from qpd.integer.constant_bytes import constant_bytes as packed_bytes
from qpd.students import SIZE_GRID, architecture_for

PORTABLE_KERNELS = "portable"


def record_of_c_lines(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a DeviceRecord; KeyError, TypeError or ValueError for other lines."""
    first = lines[0]
    return {
        "device": str(first["device"]),
        "cpu": str(first["device"]),
        "cores": first.get("cores"),
        "os": str(first.get("os", "unknown")),
        "versions": {"compiler": str(first.get("compiler", "unknown"))},
        "date": first.get("date"),
        "settings": {"source": "the C export's benchmark"},
        "rows": [row_of_c_line(line) for line in lines],
    }


def row_of_c_line(line: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a BenchRow; KeyError, TypeError or ValueError for other lines."""
    # The C program prints no size, and earlier ones no bits, which the bytes of its constants
    # identify; a line that somebody completed by hand comes first.
    size, bits = size_of_constants(int(line["constant_bytes"]))
    size = line.get("size") or size or (line["student"] if line["student"] in SIZE_GRID else None)
    bits = min(line["weight_bits"]) if "weight_bits" in line else bits
    turn = turn_of_line(line)
    return {
        "runtime": c_runtime(line["kernels"]),
        "model": str(line["student"]),
        "size": size,
        "weight_bits": bits,
        "threads": int(line["threads"]),
        "status": "measured",
        "kernels": str(line["kernels"]),
        "median_us": turn.median_us,
        "p99_us": turn.p99_us,
        "forwards_per_second": 1e6 / turn.median_us,
        "peak_rss_bytes": turn.peak_rss_bytes,
        "file_bytes": int(line["constant_bytes"]),
        "round_medians_us": [turn.median_us],
    }


def turn_of_line(line: dict[str, Any]) -> TimedTurn:
    """Return what one run of the program measured.

    Raises KeyError or TypeError for another program's line, ValueError for a time of 0.
    """
    # Written so that NaN is refused as well.
    if not float(line["median_ns"]) >= 1:
        raise ValueError("median_ns is below 1: this clock is too coarse for so small a student")
    return TimedTurn(
        int(line["forwards"]),
        float(line["median_ns"]) / 1e3,
        float(line["p99_ns"]) / 1e3,
        int(line["peak_rss_bytes"]),
    )


def c_runtime(kernels: str) -> str:
    """Return `c` for the portable build, `c-simd` for one with explicit vector instructions."""
    return "c" if kernels == PORTABLE_KERNELS else "c-simd"


def size_of_constants(constant_bytes: int) -> tuple[str | None, int | None]:
    """Return size and bits per weight of the student whose constants take so many bytes.

    Sizes of the grid differ far more than numbers of actions (2 to 18) do. Returns (None, None) for
    other sizes, for students that mix bits, and for 31,920 bytes, which are two students'.
    """
    found = []
    for size in SIZE_GRID:
        for num_actions in range(2, 19):
            architecture = architecture_for(size, (4, 84, 84), num_actions)
            for bits in range(2, 9):
                shapes = architecture.layer_shapes()
                if packed_bytes(shapes, [bits] * len(shapes)) == constant_bytes:
                    found.append((size, bits))
    return found[0] if len(found) == 1 else (None, None)
