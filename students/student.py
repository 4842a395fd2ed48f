"""The float student, run in the layout that is fastest on every device.

An 8x8 convolution with stride 4 over an 84x84 frame equals a 2x2 convolution with stride 1 over its
21x21x16 space-to-depth form, since 84 = 21 * 4. Four such frames kept apart, `[4, 21, 21, 16]`, are
what a channels-last 3-d convolution of kernel (4, 2, 2) reads without a copy. Parameters stay in
PyTorch's ordinary layout; only the arithmetic uses the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.students.affine import affine_levels
from qpd.students.architecture import LayerShape, StudentArchitecture
from qpd.students.heads import both_heads
from qpd.students.shared_background import SharedFrames

# Hears of each hidden layer's activations, and of the value that 1 stands for in them.
HiddenHook = Callable[[Tensor, Tensor | float], None]
FIRST_LINEAR = "linear1"  # its inputs: vectors, or flattened images and the features beside them
INPUT_LEVELS = 255.0  # inputs are 8-bit levels 0..255; the factor 1/255 is in the first layer


class StudentOutputs(NamedTuple):
    """`actor` float `[batch, num_outputs]`, of the actor head; `values` float `[batch]`."""

    actor: Tensor
    values: Tensor


class LayerMap(Protocol):
    """Apply one layer; `apply_layer` says how."""

    def __call__(
        self,
        shape: LayerShape,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rectified: bool = False,
        levels: float = 1.0,
    ) -> Tensor:
        """Map `inputs`, in units of 1 / `levels`; where `rectified`, ReLU follows."""


def space_to_depth(frames: Tensor) -> Tensor:
    """Block frames `[..., 84, 84]` -> `[..., 21, 21, 16]`: each 4x4 patch becomes 16 channels."""
    lead = frames.shape[:-2]
    if frames.dtype == torch.uint8 and frames.is_contiguous() and frames.numel():
        words = frames.view(torch.int32).view(*lead, 21, 4, 21)  # 4 pixels at a time: 7x faster
        return words.transpose(-2, -1).contiguous().view(torch.uint8).view(*lead, 21, 21, 16)
    patches = frames.reshape(*lead, 21, 4, 21, 4)
    return patches.transpose(-3, -2).reshape(*lead, 21, 21, 16)


def apply_layer(
    shape: LayerShape,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rectified: bool = False,
    levels: float = 1.0,
) -> Tensor:
    """Apply one layer's linear map, `weight` in ordinary layout; where `rectified`, then ReLU.

    Inputs are in units of 1 / `levels`, as 8-bit pixels are of 1 / 255; for the first layer alone.

    The first convolution reads `[batch, 4, 21, 21, 16]` (`space_to_depth` of the frames), the
    others channels-last `[batch, in, height, width]`; a linear layer flattens images as
    `(height, width, channel)`, which is a view, and permutes the weight instead, unless that is the
    larger of the two.
    """
    weight = weight if levels == 1.0 else weight / levels
    mapped = _ordinary_layer(shape, inputs.to(compute_dtype(weight)), weight, bias)
    # Not in place: on the view that a layer may return, autograd would copy it all again.
    return F.relu(mapped) if rectified else mapped


def _ordinary_layer(
    shape: LayerShape, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    if shape.kind == "conv" and inputs.dim() == 5:
        # Conv 1, as the module's docstring has it: four frames deep, 2x2 blocks of 16 channels.
        out = weight.shape[0]
        blocked = weight.reshape(out, 4, 2, 4, 2, 4).permute(0, 3, 5, 1, 2, 4)
        blocked = blocked.reshape(out, 16, 4, 2, 2).contiguous(memory_format=torch.channels_last_3d)
        return F.conv3d(inputs.permute(0, 4, 1, 2, 3), blocked, bias).squeeze(2)
    if shape.kind == "conv":
        strides = (shape.stride, shape.stride)
        if _pairs_columns(inputs, weight, shape.stride):
            inputs, weight, strides = *_column_pairs(inputs, weight), (shape.stride, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        return F.conv2d(inputs, weight, bias, strides)
    if inputs.dim() == 4:
        channels, height, width = inputs.shape[1:]
        if weight.numel() >= inputs.numel():  # the smaller of the two is copied
            return F.linear(_Flattened.apply(inputs), weight, bias)
        weight = weight.view(-1, channels, height, width).permute(0, 2, 3, 1).flatten(1)
        inputs = inputs.permute(0, 2, 3, 1).flatten(1)
    return F.linear(inputs, weight, bias)


class _Flattened(torch.autograd.Function):
    """Flatten images `[batch, channels, height, width]`; they and their gradient channels-last."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        ctx.shape = images.shape
        return images.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # Autograd would hand on a gradient in the other layout, for the convolution to convert.
        images = gradients[0].reshape(ctx.shape)
        return images.contiguous(memory_format=torch.channels_last)


def _pairs_columns(inputs: Tensor, weight: Tensor, stride: int) -> bool:
    """Tell whether `_column_pairs` applies and pays: with 64 channels and more it costs time."""
    divides = inputs.shape[-1] % 2 == 0 and weight.shape[-1] % 2 == 0
    return stride == 2 and divides and inputs.shape[1] <= 32


def _column_pairs(inputs: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """View two columns of `inputs`, channels-last, as one of twice the channels; `weight` to fit.

    A stride of 2 across columns is then one of 1, and the inputs are a view. The gradient for a
    layer of 16 channels takes half the time on a CPU with AVX512-BF16.
    """
    batch, channels, height, width = inputs.shape
    columns = inputs.permute(0, 2, 3, 1).reshape(batch, height, width // 2, 2 * channels)
    out, _, rows, taps = weight.shape
    paired = weight.reshape(out, channels, rows, taps // 2, 2).permute(0, 4, 1, 2, 3)
    return columns.permute(0, 3, 1, 2), paired.reshape(out, 2 * channels, rows, taps // 2)


class JoinedFeatures:
    """Applies layers; the first linear one reads `features`, `[batch, n]`, behind its image."""

    def __init__(self, features: Tensor) -> None:
        self._features = features

    def __call__(
        self,
        shape: LayerShape,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rectified: bool = False,
        levels: float = 1.0,
    ) -> Tensor:
        """Do what `apply_layer` does."""
        if shape.name == FIRST_LINEAR:
            inputs = torch.cat([inputs.flatten(1), self._features.to(inputs.dtype)], 1)
        return apply_layer(shape, inputs, weight, bias, rectified, levels)


class Student(nn.Module):
    """Shared trunk, actor head and (for training only) critic head.

    Vector observations are mapped to `[0, 255]` by `input_low` and `input_high`, float32
    `[features]`: the same 8-bit input that frames have by nature (Eq. 4 of the QPD paper).
    Features beside an image become numbers from 0 to `feature_top` instead, on the grid of the
    activations that they join.
    """

    input_low: Tensor
    input_high: Tensor
    feature_top: Tensor

    def __init__(self, architecture: StudentArchitecture, seed: int = 0) -> None:
        super().__init__()
        # Divide by 255 what layer 1 reads, not its weight: few bits may not hold so small a weight.
        self.divides_inputs = False
        self.hidden_hook: HiddenHook | None = None
        self.architecture = architecture
        self.shapes = architecture.layer_shapes()
        self.layers = nn.ModuleDict(
            {shape.name: _make_layer(shape) for shape in self.shapes if shape.name != "actor"}
        )
        features = self.shapes[-1].weight_shape[1]
        # Both heads read the same features; exports leave the critic out.
        self.actor = nn.Linear(features, architecture.num_outputs)
        self.critic = nn.Linear(features, 1)
        if size := architecture.num_features:
            self.register_buffer("input_low", torch.zeros(size))
            self.register_buffer("input_high", torch.ones(size))
        if architecture.joins_features:
            self.register_buffer("feature_top", torch.ones(()))
        self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        """Draw orthogonal weights, as SB3's actor-critic policies do; a small actor, as there."""
        # A generator of its own: a student's start must not depend on what else has drawn.
        generator = torch.Generator().manual_seed(seed)
        gains = {"actor": 0.01, "critic": 1.0}
        for name, module in [*self.layers.items(), ("actor", self.actor), ("critic", self.critic)]:
            assert isinstance(module, nn.Conv2d | nn.Linear)
            gain = gains.get(name, 2**0.5)
            nn.init.orthogonal_(module.weight, gain, generator=generator)
            nn.init.zeros_(self.bias(name))

    def layer(self, name: str) -> nn.Conv2d | nn.Linear:
        """Return the module called `name`: a trunk layer, `actor` or `critic`."""
        module = getattr(self, name) if name in ("actor", "critic") else self.layers[name]
        assert isinstance(module, nn.Conv2d | nn.Linear)
        return module

    def bias(self, name: str) -> Tensor:
        """Return the bias of the layer called `name`, `[out]`."""
        bias = self.layer(name).bias
        assert bias is not None
        return bias

    def set_input_range(self, low: Tensor, high: Tensor) -> None:
        """Fix the range of each vector feature; a feature that never varies gets width 1.

        One whose size is beyond float32's whole numbers gets a width that a float32 can hold.
        """
        low, high = low.to(self.input_low), high.to(self.input_high)
        self.input_low.copy_(low)
        self.input_high.copy_(
            torch.where(_varies(low, high), high, low + (1e-5 * low.abs()).clamp(min=1.0))
        )

    @torch.no_grad()
    def move_input_range(self, low: Tensor, high: Tensor) -> None:
        """Set the range of each vector feature, and layer 1 so that outputs stay as they are.

        But for observations that one of the two ranges clips. A feature that does not vary in the
        new range keeps its own: what layer 1 has learned of it may come back.
        """
        before, width = self.input_low.clone(), self.input_high - self.input_low
        low, high = low.to(before), high.to(before)
        varies = _varies(low, high)
        self.set_input_range(
            torch.where(varies, low, before), torch.where(varies, high, self.input_high)
        )
        weight = self._feature_weight()
        # x = low + width * level: what layer 1 multiplies is (x - low) / width.
        offset = weight @ ((self.input_low - before) / width)
        if self.architecture.joins_features:
            offset = offset * self.feature_top
        self.bias(FIRST_LINEAR).add_(offset)
        weight.mul_((self.input_high - self.input_low) / width)

    def _feature_weight(self) -> Tensor:
        """Return the weight of the features, `[out, features]`: a view."""
        return self.layer(FIRST_LINEAR).weight[:, -self.architecture.num_features :]

    @torch.no_grad()
    def set_feature_top(self, top: float) -> None:
        """Let features beside an image reach up to `top`, and their weights so that nothing moves.

        In integers they share the step of the activations that they join.
        """
        self._feature_weight().mul_(self.feature_top / top)
        self.feature_top.fill_(top)

    def by_channel(self, name: str, channels: int) -> Tensor:
        """View a layer's weight as `[out, channels, inputs of each]`; features of images left out.

        In PyTorch's ordinary layout a flattened image is channel by channel, as a kernel is.
        """
        weight = self.layer(name).weight.flatten(1)
        if name == FIRST_LINEAR and self.architecture.joins_features:
            weight = weight[:, : -self.architecture.num_features]
        return weight.unflatten(1, (channels, -1))

    def set_value_range(self, mean: float, deviation: float) -> None:
        """Start the critic head at the teacher's mean value, and scale it to their deviation."""
        with torch.no_grad():
            self.critic.bias.fill_(mean)
            self.critic.weight.mul_(max(deviation, 1e-3))

    def encode(self, observations: Tensor, levels: float = INPUT_LEVELS) -> Tensor:
        """Turn observations into what layer 1 reads, levels in [0, 255]: uint8 or float32.

        uint8 `[batch, 4, 84, 84]` -> `[batch, 4, 21, 21, 16]` (already blocked frames pass), other
        images stay as they are;
        float `[batch, features]` -> the same shape, clipped to the input range, not rounded;
        their top level is `levels`. Of vectors that begin with an image, the image.
        """
        if self.architecture.stacks_frames:
            return observations if observations.dim() == 5 else space_to_depth(observations)
        if self.architecture.is_image:
            return observations.contiguous(memory_format=torch.channels_last)
        if (image := self.architecture.image_shape) is not None:
            pixels = observations[:, : -self.architecture.num_features].unflatten(1, image)
            return pixels.contiguous(memory_format=torch.channels_last)
        low, high = self.input_low, self.input_high
        return affine_levels(observations, low, high, levels, rounded=False)

    def inputs_and_layers(
        self,
        observations: Tensor | SharedFrames,
        levels: float = INPUT_LEVELS,
        activation_levels: int | None = None,
    ) -> tuple[Tensor, LayerMap]:
        """Return what layer 1 reads, as `encode` has it, and the function that applies layers.

        That is `apply_layer`, or for `SharedFrames` the function that shares the background, or
        for an image with features beside it the one that joins them; students know of these nowhere
        else. Such features are values, or where `activation_levels` is given levels, 0 to that.
        """
        if isinstance(observations, SharedFrames):
            return observations.layers(apply_layer, compute_dtype(self.actor.weight))
        encoded = self.encode(observations, levels)
        if not self.architecture.joins_features:
            return encoded, apply_layer
        if activation_levels is None:
            return encoded, JoinedFeatures(self.feature_values(observations))
        features = observations[:, -self.architecture.num_features :]
        low, high = self.input_low, self.input_high
        return encoded, JoinedFeatures(affine_levels(features, low, high, activation_levels))

    def feature_values(self, observations: Tensor) -> Tensor:
        """Return shares of each feature's range, `[batch, features]`, of vectors `[batch, d]`.

        From 0 to 1, or beside an image to `feature_top`.
        """
        features = observations[:, -self.architecture.num_features :]
        shares = affine_levels(features, self.input_low, self.input_high, 1.0, rounded=False)
        return shares * self.feature_top if self.architecture.joins_features else shares

    def hidden_activations(self, observations: Tensor | SharedFrames) -> Iterator[Tensor]:
        """Yield the activations of each hidden layer in turn, float `[batch, channels, ...]`.

        Where what observations share is multiplied once, conv 1's are rows, `[n, channels]`.
        """
        hidden, apply = self.inputs_and_layers(observations)
        is_relu = self.architecture.activation == "relu"  # which `apply` has built in
        for position, shape in enumerate(self.shapes[:-1]):
            module = self.layer(shape.name)
            # 1 / 255 goes into layer 1's weight, which is far smaller than the pixels; and whole
            # levels are exact in bfloat16.
            levels = INPUT_LEVELS if position == 0 else 1.0
            if position == 0 and self.divides_inputs:
                hidden, levels = hidden / INPUT_LEVELS, 1.0
            hidden = apply(shape, hidden, module.weight, module.bias, is_relu, levels)
            if not is_relu:
                hidden = self.architecture.function(hidden)
            if self.hidden_hook is not None:
                self.hidden_hook(hidden, 1.0)
            yield hidden

    def features(self, observations: Tensor | SharedFrames) -> Tensor:
        """Compute the activations of the last shared layer, float `[batch, width]`."""
        for hidden in self.hidden_activations(observations):
            last = hidden
        return last

    def forward(self, observations: Tensor | SharedFrames) -> StudentOutputs:
        """Compute outputs and values, float32, of frames (blocked or not) or vectors."""
        return StudentOutputs(*both_heads(self.features(observations), self.actor, self.critic))

    def scale_outputs(self, factor: float) -> None:
        """Multiply the actor's outputs by `factor`, in place (folds the temperature in)."""
        with torch.no_grad():
            self.actor.weight.mul_(factor)
            self.actor.bias.mul_(factor)


def _varies(low: Tensor, high: Tensor) -> Tensor:
    """Tell of each feature whether it was seen to change by more than rounding, bool."""
    return high - low > (1e-6 * low.abs()).clamp(min=1e-6)


def compute_dtype(parameter: Tensor) -> torch.dtype:
    """Choose the dtype of activations: autocast's where it is on, else the parameters'."""
    kind = parameter.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype


def _make_layer(shape: LayerShape) -> nn.Module:
    out, inputs = shape.weight_shape[:2]
    if shape.kind == "linear":
        return nn.Linear(inputs, out)
    return nn.Conv2d(inputs, out, shape.weight_shape[2], shape.stride)
