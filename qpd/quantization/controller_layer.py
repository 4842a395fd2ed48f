"""Linear layers of an integer controller, simulated: integer weights, inputs, outputs and biases.

Kresse & Lampert (arXiv 2511.07046). Weights take their scale from their largest magnitude at every
pass; inputs, activations and outputs have learned ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.numerics.rounded_arithmetic import unrounded
from qpd.quantization.integer_grid import (
    LEAST_SCALE,
    IntegerGrid,
    WeightGrid,
    largest_magnitude,
    quantize,
    quantize_weights,
    signed_grid,
    unsigned_grid,
    weight_grid,
)

# Batches that are learned from before a scale is learned itself, and the weight of each of them.
WARM_UP, MOMENTUM = 300, 0.1
_PERCENTILE = 0.99999
_MOST_BIAS = 2.0**31 - 1.0


@dataclass(frozen=True)
class ControllerBits:
    """Bits of the input, of the core (weights, and activations after ReLU) and of the output."""

    input: int
    core: int
    output: int

    def __str__(self) -> str:
        """Return them as the command line takes them."""
        return f"core={self.core},input={self.input},output={self.output}"


class LearnedScale:
    """The scale of a layer's inputs, or of the outputs: an average first, then a parameter.

    Attributes:
        grid: its integers.
        value: float `[]`, the scale; a leaf that gets a gradient once `calls` is WARM_UP.
        calls: batches that it was averaged over, at most WARM_UP.
        watches: whether batches with a gradient count; not those of a controller that plays.
    """

    watches = True

    def __init__(self, grid: IntegerGrid, value: Tensor, calls: int = 0) -> None:
        """Begin with an average of `calls` batches."""
        self.grid, self.value, self.calls = grid, value, calls

    def quantized(self, x: Tensor) -> Tensor:
        """Return `x` on the grid; as it is where no scale is known.

        Batches with a gradient are averaged until there were WARM_UP, and each has the scale that
        it alone asks for.
        """
        if self.watches and self.calls < WARM_UP and torch.is_grad_enabled():
            return quantize(x, self._watch(x.detach()), self.grid)
        if self.calls == 0:
            return x
        return quantize(x, self.value, self.grid)

    def clamp(self) -> None:
        """Keep the scale above 0."""
        with torch.no_grad():
            self.value.clamp_(min=LEAST_SCALE)

    @torch.no_grad()
    def _watch(self, x: Tensor) -> Tensor:
        magnitudes = x.abs().flatten()
        rank = math.floor(_PERCENTILE * magnitudes.numel() + 0.5)
        is_most = rank >= magnitudes.numel()
        found = magnitudes.max() if is_most else magnitudes.kthvalue(rank).values
        found = found.clamp(min=LEAST_SCALE)
        with unrounded():  # few bits of floating point would lose a tenth of a small difference
            self.value.lerp_(found.to(self.value), MOMENTUM if self.calls else 1.0)
        self.calls += 1
        return found


class ControllerQuantizers:
    """The quantizers of an actor: its weights' grid, a scale for each layer's inputs, the output's.

    Copies of a network, such as a target, share them. Nothing is quantized until `is_active`.

    Attributes:
        scales: float32 `[layers + 1]`, the output's last; every LearnedScale holds a view of it.
    """

    def __init__(
        self,
        bits: ControllerBits,
        grid: WeightGrid,
        scales: Sequence[float],
        calls: int = 0,
        *,
        is_active: bool = False,
    ) -> None:
        """Make those of `len(scales) - 1` layers."""
        self.bits, self.grid, self.is_active = bits, grid, is_active
        self.weights = weight_grid(grid, bits.core)
        self.scales = torch.tensor(scales, dtype=torch.float32)
        inside = [unsigned_grid(bits.core)] * (len(scales) - 2)
        grids = [signed_grid(bits.input), *inside, signed_grid(bits.output)]
        # Leaves of their own, in the memory of `scales`: each has a gradient.
        self.learned = [
            LearnedScale(each, self.scales[index].detach().requires_grad_(), calls)
            for index, each in enumerate(grids)
        ]

    @property
    def calls(self) -> int:
        """The batches that scales were averaged over."""
        return self.learned[0].calls

    def bias(self, bias: Tensor, layer: int, weight_scale: Tensor) -> Tensor:
        """Return a bias as a 32-bit integer times its layer's step of accumulators."""
        inputs = self.learned[layer]
        if inputs.calls == 0:
            return bias
        with unrounded():  # 32 bits, as the accumulators have, in whatever format one learns
            step = inputs.value.detach() / inputs.grid.reach * weight_scale / self.weights.reach
            rounded = (bias / step).round().clamp(-_MOST_BIAS, _MOST_BIAS) * step
            return bias + (rounded - bias).detach()


class ControllerLinear(nn.Linear):
    """A linear layer seen through a controller's quantizers; its parameters are the float ones."""

    quantizers: ControllerQuantizers
    position: int

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's sums, those of the last layer on the output's grid."""
        quantizers = self.quantizers
        if not quantizers.is_active:
            return F.linear(inputs, self.weight, self.bias)
        inputs = quantizers.learned[self.position].quantized(inputs)
        weight = quantize_weights(self.weight, quantizers.weights)
        scale = largest_magnitude(self.weight.detach())
        sums = F.linear(inputs, weight, quantizers.bias(self.bias, self.position, scale))
        return _output(quantizers, self.position, sums)


class FrozenControllerLinear(nn.Linear):
    """Such a layer with weights and biases that are rounded already: a controller that plays.

    `weight_scale` is what the grid's largest integer stands for.
    """

    quantizers: ControllerQuantizers
    position: int
    weight_scale: float

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's sums, those of the last layer on the output's grid."""
        inputs = self.quantizers.learned[self.position].quantized(inputs)
        return _output(self.quantizers, self.position, F.linear(inputs, self.weight, self.bias))


def attach_controller(layers: Sequence[nn.Module], quantizers: ControllerQuantizers) -> None:
    """Let linear layers, in the order of play, be seen through quantizers.

    The layers stay the same objects, with the same parameters under the same names.
    """
    for position, layer in enumerate(layers):
        layer.__class__ = ControllerLinear
        layer.quantizers, layer.position = quantizers, position  # type: ignore[assignment]


@torch.no_grad()
def attach_frozen_controller(layers: Sequence[nn.Module], quantizers: ControllerQuantizers) -> None:
    """Round weights and biases of linear layers once: a controller that plays."""
    for each in quantizers.learned:
        each.watches = False
    for position, layer in enumerate(layers):
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor) and isinstance(bias, Tensor)
        scale = largest_magnitude(weight)
        rounded = quantizers.bias(bias, position, scale)
        layer.weight = nn.Parameter(quantize_weights(weight, quantizers.weights), False)
        layer.bias = nn.Parameter(rounded, requires_grad=False)
        layer.__class__ = FrozenControllerLinear
        layer.quantizers, layer.position = quantizers, position  # type: ignore[assignment]
        layer.weight_scale = float(scale)  # type: ignore[assignment]


def _output(quantizers: ControllerQuantizers, position: int, sums: Tensor) -> Tensor:
    is_last = position == len(quantizers.learned) - 2
    return quantizers.learned[-1].quantized(sums) if is_last else sums
