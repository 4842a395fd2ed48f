"""Full-precision weights against the quantized ones, layer by layer, and how far they differ.

The quantized weights are read from the packed integers. What an integer stands for follows from the
layers before it: an output channel's level is a multiple of its full-precision activation, and which
one cannot be read from the file, since phase 2 rescales channels (`qpd.quantization.equalization`).
It is found by least squares, channel by channel; the head's scale is stored. Under `dorefa` (Eq. 5
as written) nothing is fitted: an integer n stands for n / M, and the layer's scale is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.distilled_student import find_distilled
from analysis.figure_style import COLOURS, PAGE_WIDTH, new_figure
from qpd.evaluation_target import TargetError
from qpd.quantization.integer_student import IntegerLayer, IntegerStudent
from qpd.quantization.packing import load_integer_student
from qpd.run_directory import RunDirectory
from qpd.student_files import load_student
from students import Student

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_BINS = 60


@dataclass(frozen=True)
class LayerWeights:
    """One layer: `weight` of the distilled student, `quantized` in the same units and shape.

    `step`: what separates two neighbouring levels, float64 of a shape that broadcasts to theirs.
    """

    name: str
    bits: int
    weight: np.ndarray
    quantized: np.ndarray
    step: np.ndarray

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise: 10 log10(sum w^2 / sum (w - w_q)^2); inf where equal."""
        noise = float(np.square(self.weight - self.quantized).sum())
        signal = float(np.square(self.weight).sum())
        return float("inf") if noise == 0.0 else 10.0 * float(np.log10(signal / noise))

    @property
    def max_error_steps(self) -> float:
        """The largest |w - w_q|, in steps: 0.5 where nothing is clipped."""
        return float((np.abs(self.weight - self.quantized) / self.step).max())


def layer_weights(student: Student, quantized: IntegerStudent, scheme: str) -> list[LayerWeights]:
    """The layers of a distilled student beside those of the integer student made from it."""
    layers = []
    # What one level of each input channel stands for; 1: the first layer reads levels / 255.
    inputs = np.ones(1)
    for layer in quantized.layers:
        weight = student.layer(layer.shape.name).weight.detach().double().numpy()
        if scheme == "dorefa":
            unit = np.full((1,) * weight.ndim, 1.0 / (2**layer.bits - 1))
        else:
            unit, inputs = _fitted_unit(weight, layer, inputs, quantized.logit_scale)
        values = layer.weight * unit
        layers.append(LayerWeights(layer.shape.name, layer.bits, weight, values, 2.0 * unit))
    return layers
