"""Hidden layers other than ReLU in integers: a table from a pre-activation to a level.

Levels stay unsigned: level n of a layer stands for `y = low + step * n`. A pre-activation x becomes
an index i of 0..1023 on an even grid, and the level of the function at the grid's point is looked
up. What the grid and the range add (x = first + spacing * i, y = low + ...) are constants, which
the biases hold: no kernel knows of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qpd.students.activations import Activation

ENTRIES = 1024  # a level's step at 8 bits is two to four of the grid's, in a kilobyte


class LevelGrid(NamedTuple):
    """The even grids of a hidden layer's levels and of its pre-activations; float64 scalars.

    Level n stands for `step * (n - zero_point)`, index i for `first + spacing * i`.
    """

    step: Tensor
    zero_point: Tensor
    first: Tensor
    spacing: Tensor


def range_end(activation: Activation, calibrated: Tensor) -> Tensor:
    """Return the value of the top level, float64: the function's own, else `calibrated`."""
    high = calibrated.double()
    return high if activation.high is None else torch.full_like(high, activation.high)


def level_grid(activation: Activation, calibrated: Tensor, top: int) -> LevelGrid:
    """Return the grids of a layer whose top level stands for `calibrated`, a scalar.

    The functions with an upper bound ignore it. Gradients reach step and zero point.
    """
    high = range_end(activation, calibrated)
    low = activation.lowest(high)
    step = (high - low) / top
    with torch.no_grad():
        # Half a step from where the function ends is where its last level begins; a little less is
        # no tie.
        nearly = 0.49 * step
        first = -high if activation.left is None else activation.left(nearly)
        spacing = (activation.right(high, nearly) - first) / (ENTRIES - 1)
    return LevelGrid(step, -low / step, first, spacing)


@torch.no_grad()
def lookup_table(activation: Activation, grid: LevelGrid, top: int) -> Tensor:
    """Return the level at each point of the grid, halves up: int64 `[1024]`, 0 to `top`."""
    points = torch.arange(ENTRIES, dtype=torch.float64, device=grid.step.device)
    values = activation(grid.first + grid.spacing * points)
    levels = values / grid.step + grid.zero_point
    return (levels + 0.5).floor().clamp_(0, top).to(torch.int64)


@torch.no_grad()
def error_bound(activation: Activation, grid: LevelGrid) -> float:
    """Return how far a table's level is at most from the function's value, in levels.

    Half a level is rounding, as everywhere; what is left is half the grid's spacing times the
    function's steepest slope. Left of the grid SiLU and its like rise to 0 again, which counts as
    well. Values beyond the range are clipped, and not counted.
    """
    ends = torch.stack([grid.first, grid.first - 100.0])
    first, limit = (activation(ends) / grid.step + grid.zero_point).clamp_min(0.0)
    on_grid = 0.5 + activation.slope * grid.spacing / (2.0 * grid.step)
    return max(float(on_grid), float(((first + 0.5).floor() - limit).abs()))
