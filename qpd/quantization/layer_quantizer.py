"""Quantization-aware training of one layer: its ranges are watched, then fixed.

Krishnan et al. (QuaRL, arXiv 1910.01055), Algorithm 2: for a while nothing is quantized and the
least and largest numbers are noted; then those ranges, stretched to hold 0, stay as they are, and
`x = Q(W) Q(a) + b`. Weights have a range for each tensor, output channel or input column,
activations one for each layer, a network's inputs one for each feature. Biases stay float.

Two grids: `affine`, the paper's corrected form, and `dorefa_scaled`, that of QPD's integers, which
a student and every export have (DoReFa with a scale kept: odd integers, no level for 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.quantization.activation_table import level_grid
from qpd.quantization.dorefa import least_squares_scale
from qpd.quantization.weight_quantizer import Granularity
from qpd.students.activations import ACTIVATIONS, activation_of_module

Gradient = Literal["clipped", "identity"]
LayerScheme = Literal["affine", "dorefa_scaled"]
# A network's inputs are bytes, as those of students and of quantized agents.
INPUT_BITS = 8
# What inputs may do beyond what was seen, as a share of their range, and the narrowest range.
_MARGIN, _NARROWEST = 0.05, 1e-5
_LEAST_RANGE = 1e-2  # of activations, as in a student


@dataclass(frozen=True)
class Range:
    """The least and the largest number of each group, float32 `[groups]`."""

    low: Tensor
    high: Tensor

    def joined(self, other: Range) -> Range:
        """Return the range that holds both."""
        return Range(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))

    def to(self, device: torch.device) -> Range:
        """Return it on a device."""
        return (
            self if self.low.device == device else Range(self.low.to(device), self.high.to(device))
        )


class _RoundToLevels(torch.autograd.Function):
    """step * (clamp(round(x / step + zero), 0, top) - zero), straight-through."""

    @staticmethod
    def forward(ctx, x: Tensor, grid: AffineGrid, is_clipped: bool) -> Tensor:  # type: ignore[no-untyped-def]
        # A fifth of the time of torch.fake_quantize_per_channel_affine on a CPU.
        levels = grid.levels(x)
        ctx.bounds = (-0.5, grid.top + 0.5) if grid.bounds is None else grid.bounds
        if not is_clipped:
            return grid.values(levels.round_())
        if grid.bounds is None:
            ctx.save_for_backward(levels)
            return grid.values(levels.round())
        ctx.save_for_backward(x)  # which is kept anyway: a tensor less to allocate
        return grid.values(levels.round_())

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[no-untyped-def]
        grad = grads[0]
        if ctx.saved_tensors:  # none beyond the first and the last level; the bounds are exclusive
            (seen,) = ctx.saved_tensors
            grad = torch.ops.aten.hardtanh_backward(grad, seen, *ctx.bounds)
        return grad, None, None


@dataclass(frozen=True)
class AffineGrid:
    """The 2^bits levels of each range: `step * (level - zero)`, level 0 to 2^bits - 1.

    `step`, its `inverse` and `zero`, float32, have a form that broadcasts over what is quantized; 0
    is a level.
    """

    inverse: Tensor
    step: Tensor
    zero: Tensor
    top: float
    # What is clipped lies beyond these numbers; None of several ranges.
    bounds: tuple[float, float] | None = None
    has_offset: bool = True  # some zero is not 0

    @classmethod
    def of(cls, found: Range, bits: int, form: Sequence[int] = (-1,)) -> AffineGrid:
        """Return the grid of ranges, each stretched to hold 0; `form`: the shape of `step`."""
        top = 2.0**bits - 1.0
        low, high = found.low.double().clamp(max=0.0), found.high.double().clamp(min=0.0)
        step = (high - low) / top
        step = torch.where(step > 0.0, step, 1.0)
        zero = (-low / step).round()
        inverse, steps, zeros = (
            part.float().reshape(list(form)) for part in (1.0 / step, step, zero)
        )
        return cls(inverse, steps, zeros, top, *_ends(step, zero, top))

    @classmethod
    def even(cls, low: Tensor, step: Tensor, top: float) -> AffineGrid:
        """Return the grid of levels `low + step * n`; 0 need not be one of them."""
        exact = step.double()
        zero = -low.double() / exact
        return cls((1.0 / exact).float(), step.float(), zero.float(), top, *_ends(exact, zero, top))

    def levels(self, x: Tensor) -> Tensor:
        """Return where numbers lie on the scale of levels."""
        return torch.addcmul(self.zero, x, self.inverse) if self.has_offset else x * self.inverse

    def values(self, rounded: Tensor) -> Tensor:
        """Return in place the values of whole levels, and of the ends what is beyond them."""
        rounded.clamp_(0.0, self.top)
        if self.has_offset:
            rounded.sub_(self.zero)
        return rounded.mul_(self.step)

    def quantized(self, values: Tensor, gradient: Gradient = "clipped") -> Tensor:
        """Return the nearest level's value of each number, in float32.

        The gradient passes unchanged (the straight-through estimator), `clipped` where the number
        is beyond its range.
        """
        found: Tensor = _RoundToLevels.apply(values, self, gradient == "clipped")
        return found


def _ends(step: Tensor, zero: Tensor, top: float) -> tuple[tuple[float, float] | None, bool]:
    """Return the numbers half a step beyond a grid's ends if it has one range; and if zero is 0."""
    has_offset = bool((zero != 0.0).any())
    if step.numel() > 1:
        return None, has_offset
    low = -float(zero) * float(step)
    return (low - 0.5 * float(step), low + (top + 0.5) * float(step)), has_offset


class LayerQuantizer:
    """The ranges of a layer's weights and inputs, shared by the copies of a layer (targets).

    Attributes:
        name: of the layer, such as `linear1`.
        bits: of weights and activations, 2 to 8.
        per: which weights share a range; of a head of Q-values (`one_scale`) channels do.
        columns: input channels; a linear layer behind convolutions has several inputs for each.
        scheme: the grid; under `dorefa_scaled` a first layer's scale is of the weights times the
            spans of their features, which integers see as bytes, and columns share a channel's.
        input_kind: `features` (of vectors: 8 bits, a range each), `activations`, or `bytes`
            (images, which are left as they are).
        weights, inputs: the ranges seen so far, or fixed ones; None before the first.
    """

    def __init__(
        self,
        name: str,
        bits: int,
        *,
        per: Granularity = "column",
        one_scale: bool = False,
        columns: int,
        input_kind: Literal["features", "activations", "bytes"] = "activations",
        gradient: Gradient = "clipped",
        scheme: LayerScheme = "affine",
        follows: str = "ReLU",
        bound: float = math.inf,
    ) -> None:
        """Watch, quantize nothing; `follows` is the module whose activations are the inputs.

        Features lie within +-`bound`, where VecNormalize clips them.
        """
        self.name, self.bits, self.columns, self.scheme = name, bits, columns, scheme
        if scheme == "dorefa_scaled" and per == "column":
            per = "channel"
        self.per: Granularity = "tensor" if one_scale and per == "channel" else per
        self._follows, self._bound = activation_of_module(follows), bound
        self.input_kind, self.gradient = input_kind, gradient
        self.weights: Range | None = None
        self.inputs: Range | None = None
        self._weight_grid: AffineGrid | None = None
        self._input_grid: AffineGrid | None = None
        self._features: tuple[Tensor, ...] | None = None
        self._shape: tuple[int, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Tell whether it quantizes."""
        return self._weight_grid is not None

    @property
    def has_watched(self) -> bool:
        """Tell whether ranges of inputs are known, or not needed."""
        return self.inputs is not None or self.input_kind == "bytes"

    @torch.no_grad()
    def watch(self, inputs: Tensor) -> None:
        """Widen the range of inputs `[batch, ...]` to hold these."""
        if self.input_kind == "bytes":
            return
        if self.input_kind == "features":
            found = Range(*torch.aminmax(inputs, dim=0))
        else:
            low, high = torch.aminmax(inputs)
            found = Range(low.view(1), high.view(1))
        self.inputs = found if self.inputs is None else self.inputs.joined(found)

    @torch.no_grad()
    def fix(self, weight: Tensor) -> None:
        """Fix the ranges: the weights' as they are now, the inputs' as they were seen."""
        assert self.has_watched
        if self.scheme == "affine":
            groups = self._groups(weight.detach())
            self.weights = Range(groups.amin(1), groups.amax(1))
        else:
            self._end_inputs()
            seen = weight.detach() * self.spans if self.input_kind == "features" else weight
            scale = least_squares_scale(seen, self.bits, self.per == "channel")
            scale = scale if self.per == "channel" else scale[:1]
            self.weights = Range(-scale, scale)
        self.use_ranges(weight.shape)

    def use_ranges(self, shape: Sequence[int]) -> None:
        """Quantize from now on by the ranges that are known; `shape` is that of the weights."""
        assert self.weights is not None
        if self.scheme == "dorefa_scaled":
            self._use_odd_integers(shape)
            return
        found, rest = self.weights, [1] * (len(shape) - 2)
        form = {"tensor": [1, 1], "channel": [-1, 1], "column": [1, -1]}[self.per] + rest
        if self.per == "column" and shape[1] != self.columns:  # several inputs for each channel
            each = shape[1] // self.columns
            found = Range(found.low.repeat_interleave(each), found.high.repeat_interleave(each))
        self._weight_grid = AffineGrid.of(found, self.bits, form)
        if self.inputs is not None and self.input_kind == "activations":
            self._input_grid = AffineGrid.of(self.inputs, self.bits)
        self._shape, self._features = tuple(shape), None

    def _use_odd_integers(self, shape: Sequence[int]) -> None:
        """Quantize by scales s: weights `s q / (2^bits - 1)`, q odd; activations `low + step n`."""
        assert self.weights is not None
        top = 2.0**self.bits - 1.0
        step = (2.0 / top) * self.weights.high.reshape([-1, *[1] * (len(shape) - 1)])
        if self.input_kind == "features":
            step = step / self.spans
        self._weight_grid = AffineGrid.even(-0.5 * top * step, step, top)
        if self.inputs is not None and self.input_kind == "activations":
            low, high = self.inputs.low, self.inputs.high
            self._input_grid = AffineGrid.even(low, (high - low) / top, top)
        self._shape, self._features = tuple(shape), None

    def _end_inputs(self) -> None:
        """Let ranges end where those of integers do: a margin beyond features, a function's end."""
        if self.inputs is None:
            return
        if self.input_kind == "features":
            low, high = self._with_margin()
            self.inputs = Range(
                *(end.clamp(-self._bound, self._bound).float() for end in (low, high))
            )
            return
        assert self._follows is not None
        top = 2**self.bits - 1
        high = self.inputs.high.clamp(min=_LEAST_RANGE)
        grid = level_grid(ACTIVATIONS[self._follows], high[0], top)
        low = -grid.zero_point * grid.step
        ends = (end.float().reshape(1) for end in (low, low + top * grid.step))
        self.inputs = Range(*ends)

    @property
    def spans(self) -> Tensor:
        """The width of each feature's range of inputs, once it is fixed, float32 `[features]`."""
        assert self.inputs is not None
        return self.inputs.high - self.inputs.low

    def quantized_weight(self, weight: Tensor) -> Tensor:
        """Return weights `[out, in, ...]` as they act; the gradient is straight-through."""
        grid = self._weight_grid
        return weight if grid is None else grid.quantized(weight, self.gradient)

    def quantized_inputs(self, inputs: Tensor) -> Tensor:
        """Return a layer's inputs as it sees them."""
        if self._weight_grid is None or self.inputs is None:
            return inputs
        if self.inputs.low.device != inputs.device:  # the network has moved
            self.to(inputs.device)
        if self._input_grid is not None:
            return self._input_grid.quantized(inputs, self.gradient)
        # Observations need no gradient, and no level for 0: their range may be far from it.
        if self._features is None:
            self._features = self._grid_of_features()
        inverse, start, low, step = self._features
        levels = torch.addcmul(start, inputs, inverse).round_().clamp_(0.0, 2.0**INPUT_BITS - 1.0)
        return torch.addcmul(low, levels, step)

    def _grid_of_features(self) -> tuple[Tensor, ...]:
        """Return 1 / step, -low / step, low and step of each feature, float32."""
        assert self.inputs is not None
        if self.scheme == "affine":
            low, high = self._with_margin()
        else:
            low, high = self.inputs.low.double(), self.inputs.high.double()
        step = (high - low) / (2.0**INPUT_BITS - 1.0)
        return tuple(part.float() for part in (1.0 / step, -low / step, low, step))

    def _with_margin(self) -> tuple[Tensor, Tensor]:
        """Return what features may be beyond what was seen, float64 `[features]`."""
        assert self.inputs is not None
        low, high = self.inputs.low.double(), self.inputs.high.double()
        # All that was seen is 0, or 1: a flag, or a category of several, which may come yet.
        is_flag = ((low == 0) | (low == 1)) & ((high == 0) | (high == 1))
        low, high = low.masked_fill(is_flag, 0.0), high.masked_fill(is_flag, 1.0)
        margin = torch.maximum(_MARGIN * (high - low), _NARROWEST * low.abs().clamp(min=1.0))
        return low - margin, high + margin

    def _groups(self, weight: Tensor) -> Tensor:
        """Return the weights that share a range as rows."""
        if self.per == "tensor":
            return weight.reshape(1, -1)
        if self.per == "channel":
            return weight.flatten(1)
        return weight.reshape(len(weight), self.columns, -1).transpose(0, 1).flatten(1)

    def to(self, device: torch.device) -> None:
        """Move the ranges."""
        self.weights = None if self.weights is None else self.weights.to(device)
        self.inputs = None if self.inputs is None else self.inputs.to(device)
        if self._weight_grid is not None:
            self.use_ranges(self._shape)


class QuantizedLinear(nn.Linear):
    """A linear layer that is seen through a quantizer; its parameters are the float ones."""

    quantizer: LayerQuantizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `Q(W) Q(a) + b`, or watch."""
        weight, inputs = _through(self, inputs)
        return F.linear(inputs, weight, self.bias)


class QuantizedConv2d(nn.Conv2d):
    """A convolution that is seen through a quantizer; its parameters are the float ones."""

    quantizer: LayerQuantizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `Q(W) * Q(a) + b`, or watch."""
        weight, inputs = _through(self, inputs)
        return self._conv_forward(inputs, weight, self.bias)


def attach(layers: Sequence[nn.Module], quantizers: Sequence[LayerQuantizer]) -> None:
    """Let each layer, a linear one or a convolution, be seen through its quantizer.

    The layers stay the same objects, with the same parameters under the same names, so that
    optimizers, target networks and saved files know no difference.
    """
    for layer, quantizer in zip(layers, quantizers, strict=True):
        layer.__class__ = QuantizedConv2d if isinstance(layer, nn.Conv2d) else QuantizedLinear
        layer.quantizer = quantizer  # type: ignore[assignment]


class FrozenLinear(nn.Linear):
    """A linear layer whose weights are rounded already: it rounds its inputs alone."""

    quantizer: LayerQuantizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `W Q(a) + b`."""
        return F.linear(self.quantizer.quantized_inputs(inputs), self.weight, self.bias)


class FrozenConv2d(nn.Conv2d):
    """A convolution whose weights are rounded already: it rounds its inputs alone."""

    quantizer: LayerQuantizer

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `W * Q(a) + b`."""
        return self._conv_forward(self.quantizer.quantized_inputs(inputs), self.weight, self.bias)


def attach_frozen(layers: Sequence[nn.Module], quantizers: Sequence[LayerQuantizer]) -> None:
    """Round the weights of each layer once, and let it round its inputs: an agent that plays."""
    for layer, quantizer in zip(layers, quantizers, strict=True):
        weight: Tensor = layer.weight  # type: ignore[assignment]
        quantizer.use_ranges(weight.shape)
        layer.weight = nn.Parameter(quantizer.quantized_weight(weight), requires_grad=False)
        layer.__class__ = FrozenConv2d if isinstance(layer, nn.Conv2d) else FrozenLinear
        layer.quantizer = quantizer  # type: ignore[assignment]


def _through(layer: QuantizedLinear | QuantizedConv2d, inputs: Tensor) -> tuple[Tensor, Tensor]:
    quantizer = layer.quantizer
    if not quantizer.is_fixed:
        # What is learned from is watched; steps of acting would be seen twice.
        if torch.is_grad_enabled():
            quantizer.watch(inputs.detach())
        return layer.weight, inputs
    return quantizer.quantized_weight(layer.weight), quantizer.quantized_inputs(inputs)
