"""The quantized student's one meaning: integers from the frame to the logits.

uint8 levels in; k-bit weights, odd integers, or even ones with a zero; int32 accumulators and
biases; after every hidden layer
`level = clamp((acc * multiplier + 2^(shift - 1)) >> shift, 0, 2^k - 1)` with a 31-bit multiplier
(rounding: half up, which for the non-negative results of ReLU is half away from zero); the actor
head's int32 accumulators are the outputs, such as logits, in units of `output_scale`; where hidden
layers have another function than ReLU, the same with 1023 in place of the top is the index of the
level in a table (`qpd.quantization.activation_table`);
thresholds on them are the codes of continuous actions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.backends import nnpack

from qpd.actions import ActionSpace, Box
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.integer.action_codes import OutputGrid, action_codes, action_thresholds
from qpd.quantization.activation_table import ENTRIES, LevelGrid, lookup_table
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import LayerShape, StudentArchitecture
from qpd.students.affine import affine_levels
from qpd.students.student import (
    FIRST_LINEAR,
    JoinedFeatures,
    LayerMap,
    apply_layer,
    space_to_depth,
)

INT32_MAX = 2**31 - 1


class WideLayerError(UserError, ValueError):
    """A layer of so many inputs that int32 cannot hold their sum; one line says which."""

    code = ErrorCode.RECIPE_CONTRADICTION


class WideBiasError(WideLayerError):
    """A layer whose bias int32 cannot hold, in the unit of its sums."""

    code = ErrorCode.RECIPE_CONTRADICTION


@dataclass(frozen=True, eq=False)
class IntegerLayer:
    """One layer of an integer student.

    `weight` int16: `2n - zero_level(bits)`, n `bits` wide, in PyTorch's ordinary layout. `bias`
    int32 `[out]`. `multiplier` and `shift` int32 `[out]`, None in the head. `levels`: the top level
    of its output; `input_levels`: of its inputs.
    `table` uint8 `[1024]`: the level of each index, None after ReLU and in the head.
    """

    shape: LayerShape
    bits: int
    # int16, as 8-bit odd integers reach 255: two's complement int8 does not hold them.
    weight: np.ndarray
    bias: np.ndarray
    multiplier: np.ndarray | None
    shift: np.ndarray | None
    levels: int
    table: np.ndarray | None = None
    input_levels: int = 255

    def __eq__(self, other: object) -> bool:
        """Compare all fields, integer by integer."""
        return isinstance(other, IntegerLayer) and _same_fields(self, other)

    @property
    def largest_number(self) -> int:
        """Return what requantization saturates at: the top level, or a table's last index."""
        return self.levels if self.table is None else ENTRIES - 1

    @property
    def largest_accumulator(self) -> int:
        """Return a bound on |accumulator|, over all levels of inputs, bias included."""
        weights = np.abs(self.weight.astype(np.int64)).reshape(len(self.weight), -1)
        sums = self.input_levels * weights.sum(1)
        return int((sums + np.abs(self.bias.astype(np.int64))).max())


@dataclass(frozen=True, eq=False)
class IntegerStudent:
    """The integers that a device needs to play, and the range of vectors, float32 `[features]`.

    `action_bits`: those of a continuous action's code (`qpd.integer.action_codes`). `input_bits`:
    those of a vector's features. `has_zero_weight`: weights are even integers, 0 among them; else
    odd ones. `output_grid`: the rounding of a continuous action's mean before its squash.
    """

    architecture: StudentArchitecture
    layers: tuple[IntegerLayer, ...]
    output_scale: float
    actions: ActionSpace
    input_low: np.ndarray | None = None
    input_high: np.ndarray | None = None
    action_bits: int = 8
    input_bits: int = 8
    has_zero_weight: bool = False
    output_grid: OutputGrid | None = None

    def __eq__(self, other: object) -> bool:
        """Compare all fields, number by number."""
        return isinstance(other, IntegerStudent) and _same_fields(self, other)

    def encode(self, observations: np.ndarray) -> np.ndarray:
        """Quantize vectors, float32 `[batch, features]`, to levels (Eq. 4), uint8; frames pass.

        What lies beyond a feature's range saturates, infinities included; NaN becomes level 0. The
        pixels of vectors that begin with an image are levels already.
        """
        if self.input_low is None or self.input_high is None:
            return observations
        low, high = torch.from_numpy(self.input_low), torch.from_numpy(self.input_high)
        found, begin = torch.from_numpy(observations), observations.shape[1] - len(low)
        levels = affine_levels(found[:, begin:], low, high, self.input_levels)
        if begin:
            levels = torch.cat([found[:, :begin].clamp(0.0, 255.0).round(), levels], 1)
        # Casting NaN to an integer is undefined: every processor would answer with another level.
        return torch.nan_to_num(levels, nan=0.0).to(torch.uint8).numpy()

    @property
    def input_levels(self) -> int:
        """The top level of the features; beside an image, that of the activations they join."""
        if self.architecture.joins_features:
            return self.layers[0].levels
        return int(2**self.input_bits - 1)

    def zero_level(self, bits: int) -> int:
        """Return twice the level of a weight of 0: weights are `2n` less it, odd or even."""
        return int(2**bits - (0 if self.has_zero_weight else 1))

    def weight_levels(self, layer: IntegerLayer) -> np.ndarray:
        """Return levels n, int32, 0 to 2^bits - 1, of a layer's weights, in their shape."""
        # Without remainder: a weight and M are both odd, or both even.
        return (layer.weight.astype(np.int32) + self.zero_level(layer.bits)) // 2

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        """The tables of its hidden layers, uint8 `[1024]` each; a single one is shared by all."""
        found = [layer.table for layer in self.layers[:-1] if layer.table is not None]
        return tuple(found[: self.architecture.num_tables])

    @cached_property
    def action_thresholds(self) -> np.ndarray | None:
        """Accumulators at which a continuous action's code rises, int32; None for other actions."""
        if not isinstance(self.actions, Box):
            return None
        return action_thresholds(
            self.actions, self.output_scale, self.action_bits, self.output_grid
        )


def _same_fields(one: IntegerLayer | IntegerStudent, other: IntegerLayer | IntegerStudent) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def fixed_point(gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write `gain = multiplier * 2^-shift`, any shape: int32, multiplier in [2^30, 2^31).

    A gain below 2^-32 becomes 0. Raises ValueError for one that is not positive and finite, or
    needs a shift below 1.
    """
    if not (np.isfinite(gain).all() and (gain > 0).all()):
        raise ValueError("requantization needs positive, finite gains")
    mantissa, exponent = np.frexp(gain.astype(np.float64))
    multiplier = np.round(mantissa * 2**31).astype(np.int64)
    # frexp's mantissa is in [0.5, 1); one just below 1 rounds up to 2^31, which int32 does not
    # hold.
    carry = multiplier == 2**31
    multiplier, exponent = (
        np.where(carry, 2**30, multiplier),
        np.where(carry, exponent + 1, exponent),
    )
    shift = 31 - exponent
    vanishing = shift > 62  # a gain below 2^-32 sends every accumulator to 0 anyway
    multiplier, shift = np.where(vanishing, 0, multiplier), np.where(vanishing, 62, shift)
    if (shift < 1).any():
        raise ValueError(f"a requantization gain of {gain.max():g} is too large for fixed point")
    return multiplier.astype(np.int32), shift.astype(np.int32)


def bias_room(layer: str, weight: np.ndarray) -> np.ndarray:
    """Return the largest bias of each output, int64 `[out]`, of integer weights `[out, ...]`.

    With it no input can overflow the int32 accumulator, so exports need no saturating addition.
    Raises WideLayerError where products alone can.
    """
    found: np.ndarray = INT32_MAX - 255 * np.abs(weight.astype(np.int64)).reshape(
        len(weight), -1
    ).sum(1)
    if (found < 0).any():
        inputs = weight[0].size
        raise WideLayerError(
            f"layer {layer}: its {inputs:,} inputs may overflow an int32 accumulator; narrow the "
            "layer before it, or give it fewer bits"
        )
    return found


def _check_clipped(
    layer: str, bias: np.ndarray, room: np.ndarray, gain: np.ndarray | None, highest: int
) -> None:
    """Raise WideBiasError unless biases beyond `room` put their units beyond 0 and `highest`.

    `gain` is from a sum to a level, or to an index of a table; None in the head, which has no ends.
    """
    clipped = np.abs(bias) > room
    # Products are INT32_MAX - room at most, so that a clipped bias leaves at least this.
    least = 2 * room - INT32_MAX
    if clipped.any() and (gain is None or (least * gain < highest)[clipped].any()):
        raise WideBiasError(
            f"a bias of {layer} is beyond 32 bits in the unit of its weights and inputs"
        )


@torch.no_grad()
def integer_student(
    simulation: QuantizedStudent, actions: ActionSpace, action_bits: int = 8
) -> IntegerStudent:
    """Return the integers that `simulation` simulates.

    A bias that int32 cannot hold is clipped where its unit is at an end of its range all the same.
    Raises WideBiasError where it is not, and WideLayerError where int32 cannot hold products alone.
    """
    student, top = simulation.student, simulation.config.activation_levels
    # In float64: these quotients become 31-bit multipliers, and float32 has only 24 bits.
    steps = simulation.activation_ranges.double().cpu() / top
    # The division of frames by 255 is folded into the first layer's unit.
    input_levels = simulation.config.input_levels
    step = torch.tensor(1.0 / input_levels, dtype=torch.float64)
    layers: list[IntegerLayer] = []
    grid: LevelGrid | None = None
    for position, shape in enumerate(student.shapes):
        integers, scale = simulation.integer_weight(position)
        unit = scale.double().cpu() * step
        before, grid = grid, None if shape.name == "actor" else simulation.level_grid(position)
        # The head's accumulators are the outputs: nothing follows that would need them requantized.
        multiplier = shift = table = gain = None
        if simulation.has_tables:
            exact = simulation.offset_bias(position, integers, unit.to(scale.device), before, grid)
            bias = exact.cpu().numpy()
        else:
            bias = (student.bias(shape.name).double().cpu() / unit).round().numpy()
        if grid is not None:
            gain = (unit / grid.spacing.cpu()).numpy()
            step = grid.step.cpu()
            table = lookup_table(simulation.activation, grid, top).cpu().numpy().astype(np.uint8)
        elif shape.name != "actor":
            gain = (unit / steps[position]).numpy()
            step = steps[position]
        if gain is not None:
            multiplier, shift = fixed_point(gain)
        weight = integers.cpu().numpy().astype(np.int16)
        room = bias_room(shape.name, weight)
        _check_clipped(shape.name, bias, room, gain, top if table is None else len(table) - 1)
        reads = input_levels if position == 0 else top
        layer = IntegerLayer(
            shape,
            simulation.bits[position],
            weight,
            np.clip(bias, -room, room).astype(np.int32),
            multiplier,
            shift,
            top,
            table,
            reads,
        )
        layers.append(layer)
    ranges: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
    if student.architecture.num_features:
        # Copies: a CPU's buffers would be shared, and this student is frozen.
        ends = (student.input_low, student.input_high)
        low, high = (each.cpu().numpy().copy() for each in ends)
        ranges = (low, high)
    # The head has a single scale, so any of its units is the outputs' unit.
    return IntegerStudent(
        student.architecture,
        tuple(layers),
        float(unit[0]),
        actions,
        *ranges,
        action_bits,
        simulation.config.input_bits,
        simulation.config.has_zero_weight,
    )


class IntegerEngine:
    """Executes an `IntegerStudent` in batches, exactly.

    Products and sums of integers below 2^24 (2^53) are exact in float32 (float64), in any order,
    so the linear maps run on the float units; each layer takes the narrowest type that its largest
    possible accumulator fits. NNPACK, which PyTorch has where oneDNN is not, is off: its
    convolutions transform their inputs to fractions. Requantization is int64. `reference_outputs`
    is the same in plain NumPy integers, and slow.
    """

    def __init__(self, student: IntegerStudent) -> None:
        self.student = student
        self._weights = []
        for layer in student.layers:
            exact = torch.float32 if layer.largest_accumulator < 2**24 else torch.float64
            self._weights.append(torch.from_numpy(layer.weight).to(exact))
        self._requantization = [_requantization(layer) for layer in student.layers]

    @property
    def actions(self) -> ActionSpace:
        """The actions, and what outputs mean: those of continuous actions are squashed already."""
        actions = self.student.actions
        if isinstance(actions, Box):
            return actions.as_codes()
        return actions

    @torch.no_grad()
    def integer_outputs(self, observations: np.ndarray) -> np.ndarray:
        """Map uint8 images `[batch, c, h, w]` or float32 vectors to int32 `[batch, outputs]`."""
        inputs = torch.from_numpy(self.student.encode(observations))
        architecture, image_shape = self.student.architecture, self.student.architecture.image_shape
        apply: LayerMap = apply_layer
        levels: Tensor = space_to_depth(inputs) if architecture.stacks_frames else inputs
        if architecture.joins_features and image_shape is not None:
            image, features = levels.tensor_split([-architecture.num_features], 1)
            levels, apply = image.unflatten(1, image_shape), JoinedFeatures(features)
        layers = zip(self.student.layers, self._weights, self._requantization, strict=True)
        with nnpack.flags(enabled=False):
            for layer, weight, (added, multiplier, shift) in layers:
                acc = apply(layer.shape, levels.to(weight.dtype), weight, None).to(torch.int64)
                if multiplier is None or shift is None:
                    return acc.add_(added).to(torch.int32).numpy()
                # acc * multiplier stays below 2^62, so int64 holds it.
                levels = acc.mul_(multiplier).add_(added).bitwise_right_shift_(shift)
                levels = levels.clamp_(0, layer.largest_number)
                if layer.table is not None:
                    levels = torch.from_numpy(layer.table)[levels]
        raise AssertionError("the last layer is the actor head")

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return outputs float32 `[batch, num_outputs]`, in real units.

        Those of continuous actions are what their codes stand for, -1 to 1.
        """
        codes = self.codes(observations)
        if codes is not None:
            return (
                2.0 * codes.astype(np.float32) / np.float32(2**self.student.action_bits - 1) - 1.0
            )
        return self.integer_outputs(observations).astype(np.float32) * np.float32(
            self.student.output_scale
        )

    def codes(self, observations: np.ndarray) -> np.ndarray | None:
        """Return the codes of continuous actions, uint8 `[batch, num_outputs]`; None for others."""
        thresholds = self.student.action_thresholds
        if thresholds is None:
            return None
        return action_codes(self.integer_outputs(observations), thresholds)


def _requantization(layer: IntegerLayer) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return what to add to products, by what to multiply them before, how far to shift them.

    All int64, made once: (acc + bias) * multiplier + half is acc * multiplier + (bias * multiplier
    + half). Half of the divisor before an arithmetic shift: rounds half up.
    """
    view = (-1, 1, 1) if layer.shape.kind == "conv" else (-1,)
    bias = torch.from_numpy(layer.bias).to(torch.int64).view(view)
    if layer.multiplier is None or layer.shift is None:
        return bias, None, None
    multiplier = torch.from_numpy(layer.multiplier).to(torch.int64).view(view)
    shift = torch.from_numpy(layer.shift).to(torch.int64).view(view)
    half = torch.ones_like(shift) << (shift - 1)
    return bias * multiplier + half, multiplier, shift


def reference_outputs(student: IntegerStudent, observations: np.ndarray) -> np.ndarray:
    """Compute `IntegerEngine.integer_outputs` in NumPy int64: the source of truth.

    Arguments and result as there.
    """
    levels = student.encode(observations).astype(np.int64)
    features = levels[:, :0]
    image = student.architecture.image_shape
    if student.architecture.joins_features and image is not None:
        levels, features = np.split(levels, [-student.architecture.num_features], axis=1)
        levels = levels.reshape(-1, *image)
    for layer in student.layers:
        weight = layer.weight.astype(np.int64)
        if layer.shape.kind == "conv":
            kernel, stride = weight.shape[2], layer.shape.stride
            # Written from the definition of a convolution, with nothing shared with the engine's
            # fast layout.
            windows = np.lib.stride_tricks.sliding_window_view(levels, (kernel, kernel), (2, 3))
            acc = np.einsum("bchwij,ocij->bohw", windows[:, :, ::stride, ::stride], weight)
            bias = layer.bias[None, :, None, None]
        else:
            levels = levels.reshape(len(levels), -1)
            if layer.shape.name == FIRST_LINEAR:
                levels = np.concatenate([levels, features.reshape(len(levels), -1)], 1)
            acc, bias = levels @ weight.T, layer.bias[None]
        acc = acc + bias
        if layer.multiplier is None or layer.shift is None:
            return acc.astype(np.int32)
        # Channels are axis 1 of images and vectors alike.
        view = (1, -1) + (1,) * (acc.ndim - 2)
        shift = layer.shift.astype(np.int64).reshape(view)
        half = np.int64(1) << (shift - 1)
        acc = (acc * layer.multiplier.astype(np.int64).reshape(view) + half) >> shift
        levels = np.clip(acc, 0, layer.largest_number)
        if layer.table is not None:
            levels = layer.table[levels].astype(np.int64)
    raise AssertionError("the last layer is the actor head")
