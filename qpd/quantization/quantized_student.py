"""The quantized student as training sees it: integers carried in floats, straight-through.

Every tensor that flows between layers holds integers (levels 0..2^k - 1); weights are the odd
integers of `dorefa`, or even ones with a zero. The forward pass equals the integer engine's, except
where a level is a matter of rounding, as gains have 24 bits here and 31 there, and where an
accumulator, or a few parts of it, is rounded to bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.quantization.activation_table import ENTRIES, LevelGrid, level_grid, lookup_table
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.dorefa import (
    dorefa_integers,
    largest_integer,
    least_squares_scale,
    scaled_integers,
)
from qpd.quantization.straight_through import quantize_activations, round_straight_through
from qpd.students import Student, StudentOutputs
from qpd.students.shared_background import SharedFrames
from qpd.students.student import FIRST_LINEAR, HiddenHook, LayerMap, apply_layer, compute_dtype

MIN_RANGE = 1e-2  # far below any useful range of activations
LEAST_SHARE_OF_BIAS = 2.0**-14  # of scale times inputs' range: 2^14 * 255 * 255 fits an int32
MIN_SCALE = 1e-3  # of weights, in units of the layer's largest at first, or of 1


class QuantizedStudent(nn.Module):
    """A float student seen through its quantizers; its parameters are still theta_f.

    `activation_ranges`, float32 `[hidden layers]`: the value that the top level of each layer's
    activations stands for, unless that is the function's own bound. `weight_scales`, float32
    `[out]` for each layer (`[1]` where a layer has one scale). Both are set by calibration, then
    trained if the configuration says so.
    """

    def __init__(self, student: Student, config: QuantizationConfig) -> None:
        super().__init__()
        self.student, self.config = student, config
        self.hidden_hook: HiddenHook | None = None
        self.bits = config.layer_bits(student.shapes)
        self.activation = student.architecture.function
        self.has_tables = student.architecture.num_tables > 0
        learns = config.learned_ranges and self.activation.high is None
        ranges = torch.full((len(student.shapes) - 1,), self.activation.high or 1.0)
        if student.architecture.joins_features:
            ranges[len(student.architecture.conv_channels) - 1] = student.feature_top
        self.activation_ranges = nn.Parameter(ranges, requires_grad=learns)
        self.weight_scales = nn.ParameterDict()
        if config.has_scales:
            for position, shape in enumerate(student.shapes):
                # The head's accumulators are compared with each other, action by action: they need
                # one unit.
                per_channel = config.per_channel and shape.name != "actor"
                scale = self._fitted_scale(position, per_channel)
                self.weight_scales[shape.name] = nn.Parameter(
                    # One number, not [out] equal ones: those would drift apart as soon as they are
                    # trained.
                    scale if per_channel else scale[:1].clone(),
                    requires_grad=config.learned_ranges,
                )
        # Weights may all be small, as those of a head whose Q-values are.
        self._least_scales = {
            name: MIN_SCALE * min(max(float(scale.detach().max()), 1e-9), 1.0)
            for name, scale in self.weight_scales.items()
        }
        self.keep_ranges_positive()

    def _fitted_scale(self, position: int, per_channel: bool) -> Tensor:
        found = least_squares_scale(
            self.student.layer(self.student.shapes[position].name).weight,
            self.bits[position],
            per_channel,
            has_zero=self.config.has_zero_weight,
        )
        # Of weights that are all 0, or tiny beside their bias.
        least = self._scale_of_bias(position)
        return found.maximum(least if per_channel else least.max())

    @torch.no_grad()
    def _scale_of_bias(self, position: int) -> Tensor:
        """Return the least scale of each unit's weights at which its bias fits an int32.

        float32 `[out]`. The unit of a bias is this scale's times the step of what the layer reads.
        """
        name = self.student.shapes[position].name
        bias: Tensor = self.student.bias(name)
        span: Tensor | None = None  # of what the layer reads; None: 1
        if self.has_tables:
            grid = None if name == "actor" else self.level_grid(position)
            before = self.level_grid(position - 1) if position else None
            bias = bias if grid is None else bias.double() - grid.first
            span = None if before is None else before.step * self.config.activation_levels
        elif position:
            span = self.activation_ranges[position - 1]
        share = LEAST_SHARE_OF_BIAS if span is None else LEAST_SHARE_OF_BIAS / span.clamp(max=1.0)
        return (bias.abs() * share).float()

    @torch.no_grad()
    def make_room_for_bias(self, position: int) -> None:
        """Lift the scales of layer `position` until its biases fit the integers' int32."""
        name = self.student.shapes[position].name
        if name in self.weight_scales:
            scale, least = self.weight_scales[name], self._scale_of_bias(position)
            scale.copy_(scale.maximum(least if len(scale) == len(least) else least.max()))

    def extra_repr(self) -> str:
        """Describe bits, rounding and scheme, for `repr`."""
        return (
            f"weight_bits={self.bits}, activation_bits={self.config.activation_bits}, "
            f"scheme={self.config.scheme}, rounding=nearest"
        )

    def integer_weight(
        self, position: int, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Return layer `position`'s integers (`dtype`, weight's shape) and what 1 is, `[out]`."""
        shape, bits = self.student.shapes[position], self.bits[position]
        weight = self.student.layer(shape.name).weight
        if not self.config.has_scales:
            # Literal Eq. 5 has no scale of its own: w_q = integers / M.
            unit = weight.new_full((len(weight),), 1.0 / largest_integer(bits))
            return dorefa_integers(weight, bits).to(dtype), unit
        scale = self.weight_scales[shape.name].expand(len(weight))
        has_zero = self.config.has_zero_weight
        integers = scaled_integers(weight, scale, bits, dtype, has_zero=has_zero)
        return integers, scale / largest_integer(bits, has_zero=has_zero)

    def integer_bias(self, position: int, unit: Tensor) -> Tensor:
        """Return the bias of layer `position` in units of the accumulator, `unit [out]`: integers.

        float `[out]`, with straight-through gradient.
        """
        return round_straight_through(self.student.bias(self.student.shapes[position].name) / unit)

    def level_grid(self, position: int) -> LevelGrid | None:
        """Return the grids of hidden layer `position`, None where it has no table: ReLU's."""
        if not self.has_tables:
            return None
        top = self.config.activation_levels
        return level_grid(self.activation, self.activation_ranges[position], top)

    def offset_bias(
        self,
        position: int,
        integers: Tensor,
        unit: Tensor,
        before: LevelGrid | None,
        here: LevelGrid | None,
    ) -> Tensor:
        """Return the bias of layer `position` in accumulator units, the grids' constants in it.

        `integers` are its weights and `unit`, float64 `[out]`, an accumulator's value; `before` and
        `here` are the grids of the layer before, if any, and of this one, unless it is the head.
        float64 `[out]`, integers, with straight-through gradient.
        """
        # sum w step (n - zero) = unit (sum w n - zero sum w), and the grid's first point has
        # index 0. Rounded once, in float64: a float32 would not hold all of the offset's digits.
        first = 0.0 if here is None else here.first
        bias = (self.student.bias(self.student.shapes[position].name).double() - first) / unit
        if before is not None:
            bias = bias - before.zero_point * integers.flatten(1).sum(1).double()
        return round_straight_through(bias)

    @torch.no_grad()
    def keep_ranges_positive(self) -> None:
        """Clamp ranges and scales from below; call it after every update.

        One that crossed zero could never come back: gains would be negative.
        """
        self.activation_ranges.clamp_(min=MIN_RANGE)
        for name, scale in self.weight_scales.items():
            scale.clamp_(min=self._least_scales[name])
        for position in range(len(self.student.shapes)):
            self.make_room_for_bias(position)
        if self.student.architecture.joins_features:
            # Features move with the step that they share, and so does the float function.
            last = len(self.student.architecture.conv_channels) - 1
            self.student.feature_top.copy_(self.activation_ranges[last])

    def input_levels(self, observations: Tensor) -> Tensor:
        """Quantize observations to levels (Eq. 4), in the shapes of `Student.encode`."""
        return self.levels_and_layers(observations)[0]

    def levels_and_layers(self, observations: Tensor | SharedFrames) -> tuple[Tensor, LayerMap]:
        """Return what `input_levels` does, and the function that applies layers."""
        # The rounding of Eq. 4: `encode` leaves it out, as the float student sees unrounded
        # vectors.
        encoded, apply = self.student.inputs_and_layers(
            observations, self.config.input_levels, self.config.activation_levels
        )
        return encoded if encoded.dtype == torch.uint8 else encoded.round(), apply

    def accumulate(
        self,
        position: int,
        levels: Tensor,
        dtype: torch.dtype,
        apply: LayerMap = apply_layer,
    ) -> tuple[Tensor, Tensor]:
        """Return integer accumulators of layer `position` (no bias), and its scale `[out]`.

        `dtype` is the arithmetic's; `apply` applies the layer.
        """
        integers, scale = self.integer_weight(position, dtype)
        shape = self.student.shapes[position]
        return apply(shape, levels, integers, None), scale

    def accumulators(
        self, position: int, levels: Tensor, before: LevelGrid | None, here: LevelGrid | None
    ) -> tuple[Tensor, Tensor]:
        """Return accumulators of a layer between tables, bias included, and their unit `[out]`.

        Both float64, `[batch, out]` of `levels` on the grid `before`; `offset_bias` has the grids.
        """
        integers, scale = self.integer_weight(position)
        step: Tensor | float = 1.0 / self.config.input_levels if before is None else before.step
        unit = scale.double() * step
        # float32 holds sums below 2^24 exactly, and the offset does not have to fit as well.
        products = apply_layer(self.student.shapes[position], levels.float(), integers, None)
        return products.double() + self.offset_bias(position, integers, unit, before, here), unit

    def looked_up(
        self, position: int, levels: Tensor, before: LevelGrid | None
    ) -> tuple[Tensor, LevelGrid]:
        """Return the levels of hidden layer `position`, float32, by its table; and its grids.

        `levels` are those before it, on the grid `before`. The gradient is the function's own, as
        if there were no table.
        """
        here, top = self.level_grid(position), self.config.activation_levels
        assert here is not None
        acc, unit = self.accumulators(position, levels, before, here)
        with torch.no_grad():
            index = (acc * (unit / here.spacing) + 0.5).floor().clamp_(0, ENTRIES - 1)
            found = lookup_table(self.activation, here, top)[index.to(torch.int64)]
        exact = self.activation(here.first + acc * unit) / here.step + here.zero_point
        exact = exact.clamp(0, top)
        levels = (exact + (found - exact).detach()).float()
        if self.hidden_hook is not None:
            self.hidden_hook(levels, here.step)
        return levels, here

    def _table_outputs(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and features of a student with tables, `[batch, ...]`, float32."""
        levels, grid = self.input_levels(observations), None
        head = len(self.student.shapes) - 1
        for position in range(head):
            levels, grid = self.looked_up(position, levels, grid)
        assert grid is not None
        acc, unit = self.accumulators(head, levels, grid, None)
        return (acc * unit).float(), ((levels.double() - grid.zero_point) * grid.step).float()

    def hidden_activations(self, observations: Tensor | SharedFrames) -> Iterator[Tensor]:
        """Yield the levels of each hidden layer in turn, `[batch, channels, ...]`; for ReLU.

        `looked_up` is for tables.
        """
        dtype = compute_dtype(self.student.actor.weight)
        levels, apply = self.levels_and_layers(observations)
        top = self.config.activation_levels
        step: Tensor | float = 1.0 / self.config.input_levels
        for position in range(len(self.student.shapes) - 1):
            # Autocast would round gains, scales and biases to bfloat16, whose 8 bits of mantissa
            # cannot hold them; only the products of integers run in `dtype`.
            with torch.autocast(levels.device.type, enabled=False):
                acc, scale = self.accumulate(position, levels, dtype, apply)
                next_step = self.activation_ranges[position] / top
                gain = scale * step / next_step
                # Rounded in units of the accumulator, as the engine's int32 bias is.
                bias = self.integer_bias(position, scale * step)
                levels = quantize_activations(acc, gain, bias * gain, top)
            step = next_step
            if self.hidden_hook is not None:
                self.hidden_hook(levels, step)
            yield levels

    def hidden_levels(self, observations: Tensor | SharedFrames) -> tuple[Tensor, Tensor]:
        """Return the last shared layer's levels, `[batch, width]`, and the value of one level."""
        for hidden in self.hidden_activations(observations):
            levels = hidden
        return levels, self.activation_ranges[-1] / self.config.activation_levels

    @torch.no_grad()
    def refit_scales(self, layer: str, units: Tensor) -> None:
        """Fit the scales of new weights: those of the `units`, bool `[out]`, of a `layer`.

        Only where each channel has its own scale.
        """
        scales = self.weight_scales[layer] if layer in self.weight_scales else None
        if scales is None or len(scales) != len(units):
            return
        position = [shape.name for shape in self.student.shapes].index(layer)
        scales[units] = self._fitted_scale(position, True)[units]

    @torch.no_grad()
    def join_features(self, position: int) -> None:
        """Put features beside an image on the grid of hidden layer `position`, if they join it.

        They come before the first linear layer, whose scales are fitted anew.
        """
        following = self.student.shapes[position + 1].name
        if not self.student.architecture.joins_features or following != FIRST_LINEAR:
            return
        self.student.set_feature_top(float(self.activation_ranges[position]))
        if following in self.weight_scales:
            scales = self.weight_scales[following]
            per_channel = len(scales) == len(self.student.layer(following).weight)
            fitted = self._fitted_scale(position + 1, per_channel)
            scales.copy_(fitted if per_channel else fitted[:1])

    def forward(self, observations: Tensor | SharedFrames) -> StudentOutputs:
        """Return outputs and values, float32; the critic reads dequantized features in float."""
        critic = self.student.critic
        if self.has_tables:
            assert isinstance(observations, Tensor)  # vectors
            with torch.autocast(observations.device.type, enabled=False):
                outputs, features = self._table_outputs(observations)
                values = F.linear(features, critic.weight, critic.bias)
            return StudentOutputs(outputs, values.squeeze(-1))
        levels, step = self.hidden_levels(observations)
        with torch.autocast(levels.device.type, enabled=False):
            # The head is exact in float32: its accumulators are the outputs; rounded logits tie.
            levels = levels.float()
            acc, scale = self.accumulate(len(self.student.shapes) - 1, levels, torch.float32)
            unit = scale * step
            outputs = (acc + self.integer_bias(len(self.student.shapes) - 1, unit)) * unit
            values = F.linear(levels * step, critic.weight, critic.bias)
        return StudentOutputs(outputs, values.squeeze(-1))
