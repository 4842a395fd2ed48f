"""An integer controller, trained by `qpd train --bits core=...`, as the student of its integers.

Kresse & Lampert (arXiv 2511.07046). Its quantizers are uniform grids with one scale each, so that
nothing is calibrated or lost: normalization and the input's scale become the range of each feature,
scales of neighbouring layers a multiplier and a shift, the output's grid and tanh the thresholds
of an action's codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from qpd.actions import Box
from qpd.integer.action_codes import OutputGrid
from qpd.integer.integer_student import IntegerLayer, IntegerStudent, bias_room, fixed_point
from qpd.quantization.controller_layer import ControllerQuantizers, FrozenControllerLinear
from qpd.students import StudentArchitecture


@torch.no_grad()
def controller_student(
    layers: Sequence[FrozenControllerLinear],
    quantizers: ControllerQuantizers,
    mean: np.ndarray,
    deviation: np.ndarray,
    actions: Box,
    action_bits: int = 8,
) -> IntegerStudent:
    """Return the integers of a controller that plays: `layers` in the order of play.

    `mean` and `deviation`, float64 `[features]`, normalize observations. A weight of the grids with
    a zero is twice itself here (`IntegerStudent.has_zero_weight`), and accumulators with it. The
    normalization's clip is not repeated: where the input's scale is beyond it, observations that
    far out may take other levels. Raises ValueError where no integers hold it.
    """
    has_zero = not quantizers.weights.is_odd
    scales = quantizers.scales.detach().double().numpy()
    doubled = 2 if has_zero else 1
    input_grid, output_grid = quantizers.learned[0].grid, quantizers.learned[-1].grid
    step = scales[0] / input_grid.reach
    low, high = _input_range(mean, step * deviation, input_grid.least, 2**quantizers.bits.input)
    widths = [layer.out_features for layer in layers]
    architecture = StudentArchitecture((len(mean),), widths[-1], (), tuple(widths[:-1]))
    top = int(2**quantizers.bits.core - 1)
    found: list[IntegerLayer] = []
    for position, (layer, shape) in enumerate(
        zip(layers, architecture.layer_shapes(), strict=True)
    ):
        weight_step = layer.weight_scale / quantizers.weights.reach
        integers = np.rint(layer.weight.double().numpy() / weight_step).astype(np.int64) * doubled
        unit = step * weight_step / doubled
        bias = np.rint(layer.bias.double().numpy() / unit)
        if position == 0:  # levels begin at 0: level n stands for the integer n + least
            bias = bias + input_grid.least * integers.sum(1)
        reads = 2**quantizers.bits.input - 1 if position == 0 else top
        room = bias_room(shape.name, integers)
        if (np.abs(bias) > room).any():
            raise ValueError(
                f"a bias of {shape.name} is beyond 32 bits, where training clips it: the scale of "
                "its inputs is tiny, as that of units that are never active"
            )
        multiplier = shift = None
        if position < len(layers) - 1:
            step = scales[position + 1] / top
            multiplier, shift = fixed_point(np.full(len(integers), unit / step))
        found.append(
            IntegerLayer(
                shape,
                quantizers.bits.core,
                integers.astype(np.int16),
                bias.astype(np.int32),
                multiplier,
                shift,
                top,
                None,
                reads,
            )
        )
    return IntegerStudent(
        architecture,
        tuple(found),
        float(unit),
        actions,
        low,
        high,
        action_bits,
        quantizers.bits.input,
        has_zero,
        OutputGrid(float(scales[-1] / output_grid.reach), quantizers.bits.output),
    )


def _input_range(
    mean: np.ndarray, step: np.ndarray, least: int, levels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the lowest and the highest level stand for, float32 `[features]`.

    The mean is level `-least`. The step of a feature that never varied may be too small for float32
    beside its mean: there it is float32's own, so that the mean keeps its level.
    """

    def ends(by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low = mean + least * by
        return low.astype(np.float32), (low + levels * by - by).astype(np.float32)

    low, high = ends(step)
    if (high > low).all():
        return low, high
    return ends(np.where(high > low, step, np.spacing(np.abs(mean).astype(np.float32))))
