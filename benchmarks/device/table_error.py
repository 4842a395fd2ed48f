"""Measure how far the tables of hidden layers are from their functions, in levels.

    python -m benchmarks.device.table_error [--bits 8] [--range 2.0]

Compares a million pre-activations, over the grid and its width beyond either end, with the function
in float64, clipped to the range; `--range` stands for what calibration would find where a function
has no upper bound. Prints the largest error, and the bound of docs/method.md.
"""

from __future__ import annotations

import argparse

import torch

from qpd.quantization.activation_table import ENTRIES, error_bound, level_grid, lookup_table
from qpd.students.activations import ACTIVATIONS, Activation


def largest_error(activation: Activation, calibrated: float, top: int) -> tuple[float, float]:
    """Return the largest |level - exact level| on a million points, and its bound."""
    grid = level_grid(activation, torch.tensor(calibrated), top)
    table = lookup_table(activation, grid, top)
    index = torch.linspace(-ENTRIES, 2 * ENTRIES, 1_000_000, dtype=torch.float64)
    exact = activation(grid.first + grid.spacing * index) / grid.step + grid.zero_point
    found = table[(index + 0.5).floor().clamp(0, ENTRIES - 1).long()]
    return float((found - exact.clamp(0, top)).abs().max()), error_bound(activation, grid)


def main() -> None:
    """Print one line a function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--range", type=float, default=2.0)
    arguments = parser.parse_args()
    print(f"{'function':12} {'error':>7} {'bound':>7}  levels at {arguments.bits} bits")
    for name, activation in ACTIVATIONS.items():
        if name != "relu":
            error, bound = largest_error(activation, arguments.range, 2**arguments.bits - 1)
            print(f"{name:12} {error:7.3f} {bound:7.3f}")


if __name__ == "__main__":
    main()
