"""Phase 2's activation ranges: the value that the top level of each layer stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from qpd.quantization.quantized_student import MIN_RANGE, QuantizedStudent
from qpd.students.activations import Activation

_MOST_VALUES = 200_000  # of a layer that are looked at


def best_range(activations: Tensor, levels: int, percentile: float) -> float:
    """Return the range r with the least error when x becomes `round(x * levels / r)`, clipped.

    Searches 64 fractions of the `percentile` of the positive activations, of any shape, for the
    least mean squared error. Returns 1.0 if no activation is positive (a dead layer).
    """
    # Zeros are exact in any range; with sparse activations they would only dilute the percentile.
    positive = _some(activations[activations > 0]).float()
    if len(positive) == 0:
        return 1.0
    ceiling = torch.quantile(positive, percentile / 100.0)
    candidates = ceiling * torch.linspace(1 / 64, 1.0, 64)
    # Eq. 4 from 0 to r, in the engine's order of operations rather than that of `affine_levels`.
    errors = [
        (positive - (positive * (levels / r)).round().clamp_max(levels) * (r / levels))
        .square()
        .mean()
        for r in candidates
    ]
    return float(candidates[int(torch.stack(errors).argmin())])


def best_table_range(
    activation: Activation, values: Tensor, levels: int, percentile: float
) -> float:
    """Return `best_range` for a function whose range begins at `activation.lowest(r)`."""
    positive = _some(values[values > 0]).double()
    if len(positive) == 0:
        return 1.0
    thinned = _some(values.flatten()).double()
    ceiling = torch.quantile(positive, percentile / 100.0)
    errors = []
    candidates = ceiling * torch.linspace(1 / 64, 1.0, 64, device=values.device)
    for high in candidates:
        low = activation.lowest(high)
        step = (high - low) / levels
        restored = ((thinned - low) / step).round().clamp(0, levels) * step + low
        errors.append((thinned - restored).square().mean())
    return float(candidates[int(torch.stack(errors).argmin())])


def _some(values: Tensor) -> Tensor:
    """Return `values`, `[n]`, or a random draw of `_MOST_VALUES`, always the same.

    Every n-th would be a part of the units alone wherever their number has a divisor in common with
    n. torch.quantile refuses more than 16 million elements and sorts what it gets.
    """
    if len(values) <= _MOST_VALUES:
        return values
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(values), (_MOST_VALUES,), generator=generator)
    return values[places.to(values.device)]


@torch.no_grad()
def calibrate(student: QuantizedStudent, observations: Tensor, percentile: float = 100.0) -> None:
    """Set `activation_ranges` layer by layer, each from the quantized output of those before it.

    observations: uint8 frames (blocked or not) or float32 vectors, `[batch, ...]`.
    """
    # The levels of a layer are rounded before the next one is calibrated, as the engine will read
    # them: float activations would hide the error that has built up by then.
    levels, apply = student.levels_and_layers(observations)
    levels = levels.float()
    if student.has_tables:
        _calibrate_tables(student, levels, percentile)
        return
    step = 1.0 / student.config.input_levels
    top = student.config.activation_levels
    head = len(student.student.shapes) - 1
    for position in range(head):
        student.make_room_for_bias(position)
        acc, scale = student.accumulate(position, levels, levels.dtype, apply)
        unit = scale * step
        view = (1, -1) + (1,) * (acc.dim() - 2)
        bias = student.integer_bias(position, unit)
        activations = ((acc + bias.view(view)) * unit.view(view)).relu_()
        # The range depends on everything before it, so calibration is one pass from input to head.
        ceiling = max(best_range(activations, top, percentile), MIN_RANGE)
        student.activation_ranges[position] = ceiling
        student.join_features(position)
        step = ceiling / top
        levels = (activations / step).round_().clamp_(0, top)
    student.make_room_for_bias(head)


def _calibrate_tables(student: QuantizedStudent, levels: Tensor, percentile: float) -> None:
    """Set the ranges of functions without an upper bound; those with one have theirs."""
    function, grid = student.activation, None
    if function.high is not None:
        return
    top = student.config.activation_levels
    head = len(student.student.shapes) - 1
    for position in range(head):
        student.make_room_for_bias(position)
        acc, unit = student.accumulators(position, levels, grid, None)
        found = best_table_range(function, function(acc * unit), top, percentile)
        student.activation_ranges[position] = max(found, MIN_RANGE)
        levels, grid = student.looked_up(position, levels, grid)
    student.make_room_for_bias(head)
