"""Describe a student: the shapes of its layers, and how many parameters they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from qpd.students.activations import ACTIVATIONS, Activation

# Kernel and stride of each convolution, no padding. The first three are those of Mnih et al. 2015
# and SB3's NatureCNN; a fourth and a fifth shrink 7x7 to 3x3 and 1x1, in place of a linear layer
# over 49 positions, which holds most parameters of the small sizes.
KERNELS = (8, 4, 3, 3, 3)
STRIDES = (4, 2, 1, 2, 2)
NATURE_CONVOLUTIONS = 3
STACKED_FRAMES = (4, 84, 84)
_LEAST_SIDE = 36  # pixels, of which the three convolutions leave 1
_TOO_SMALL = (
    "students of images have at least three convolutions, as SB3's NatureCNN, which need 36x36: "
    "show the images larger (gymnasium.wrappers.ResizeObservation), or as a vector "
    "(FlattenObservation), in the agent's training, too"
)


@dataclass(frozen=True)
class LayerShape:
    """One layer's geometry, in PyTorch's ordinary layout.

    `weight_shape` is `[out, in, kh, kw]` for a convolution and `[out, in]` for a linear layer;
    `output_shape` is `(channels, height, width)` or `(features,)`.
    """

    name: str
    kind: Literal["conv", "linear"]
    weight_shape: tuple[int, ...]
    stride: int
    output_shape: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return prod(self.weight_shape) + self.weight_shape[0]

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of one forward pass."""
        return prod(self.weight_shape) * prod(self.output_shape[1:])


@dataclass(frozen=True)
class StudentArchitecture:
    """A feed-forward student: convolutions (or none), hidden linear layers, actor head.

    `observation_shape` is `(channels, height, width)` with `conv_channels` given, the three Nature
    convolutions and up to two more, or `(features,)` without. `image_shape` makes the first numbers
    of a vector an image, `(channels, height, width)`: convolutions read it, and the first linear
    layer reads what they make of it and then the features that follow it (SB3's
    CombinedExtractor). Of images it is `observation_shape`. `activation`, a name in
    `qpd.students.activations`, follows each hidden layer; students of images have ReLU.
    `stacks_frames`: observations are Atari's stacks of four frames, which are kept frame by frame.
    By default (4, 84, 84) is such a stack; False where it is an image of another kind.
    Raises ValueError where these do not fit together.
    """

    observation_shape: tuple[int, ...]
    num_outputs: int
    conv_channels: tuple[int, ...]
    hidden: tuple[int, ...]
    activation: str = "relu"
    stacks_frames: bool | None = None
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.observation_shape) not in (1, 3) or min(self.observation_shape) < 1:
            raise ValueError(f"observations of shape {self.observation_shape}: need 1 or 3 axes")
        if self.is_image:
            object.__setattr__(self, "image_shape", self.observation_shape)
        elif self.image_shape is not None and (
            len(self.image_shape) != 3
            or min(self.image_shape) < 1
            or prod(self.image_shape) >= self.observation_shape[0]
        ):
            raise ValueError(
                f"an image of shape {self.image_shape} and features beside it do not fit "
                f"observations of shape {self.observation_shape}"
            )
        may_stack = self.observation_shape == STACKED_FRAMES
        if self.stacks_frames is None:
            object.__setattr__(self, "stacks_frames", may_stack)
        if self.stacks_frames and not may_stack:
            raise ValueError(
                f"observations of shape {self.observation_shape}: a stack of frames has "
                f"{STACKED_FRAMES}"
            )
        has_image = self.image_shape is not None
        counts = range(NATURE_CONVOLUTIONS, len(KERNELS) + 1) if has_image else range(1)
        if len(self.conv_channels) not in counts:
            wanted = "vectors need no convolutions, and sizes mlp-N have none"
            if has_image and not self._fits_nature():
                wanted = _TOO_SMALL
            elif has_image:
                wanted = "images need three to five convolutions; sizes XXS to XXL have three"
            raise ValueError(
                f"observations of shape {self.observation_shape} do not fit "
                f"conv_channels={list(self.conv_channels)}: {wanted}"
            )
        if not self.hidden or min((*self.hidden, *self.conv_channels)) < 1 or self.num_outputs < 1:
            raise ValueError("a student needs at least one hidden layer, and positive widths")
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"unknown activation {self.activation!r:.40}: one of {', '.join(ACTIVATIONS)}"
            )
        if has_image and self.activation != "relu":
            raise ValueError(
                f"students of images have ReLU; remove activation={self.activation}, which is for "
                "vectors"
            )
        if has_image and min(min(s.output_shape) for s in self._convolutions()) < 1:
            raise ValueError(
                f"images of shape {self.image_shape} are too small for "
                f"{len(self.conv_channels)} convolutions"
                + ("; three fit 36x36" if self._fits_nature() else f": {_TOO_SMALL}")
            )

    def _fits_nature(self) -> bool:
        """Tell whether an image is large enough for the fewest convolutions that there are."""
        assert self.image_shape is not None
        return min(self.image_shape[1:]) >= _LEAST_SIDE

    @property
    def is_image(self) -> bool:
        """Tell whether observations are images, and nothing else."""
        return len(self.observation_shape) == 3

    @property
    def joins_features(self) -> bool:
        """Tell whether observations are vectors that begin with an image."""
        return self.image_shape is not None and not self.is_image

    @property
    def num_features(self) -> int:
        """Count the numbers that have an input range: all of a vector but its image."""
        if self.is_image:
            return 0
        return self.observation_shape[0] - (prod(self.image_shape) if self.image_shape else 0)

    @property
    def function(self) -> Activation:
        """The function behind each hidden layer."""
        return ACTIVATIONS[self.activation]

    @property
    def num_tables(self) -> int:
        """Count the tables that its integers need: none for ReLU, one where all layers share it."""
        if self.activation == "relu":
            return 0
        return 1 if self.function.high is not None else len(self.hidden)

    def _convolutions(self) -> Iterator[LayerShape]:
        if self.image_shape is None:
            return
        channels, *sides = self.image_shape
        for i, (width, kernel, stride) in enumerate(
            zip(self.conv_channels, KERNELS, STRIDES, strict=False), start=1
        ):
            sides = [(side - kernel) // stride + 1 for side in sides]
            weight = (width, channels, kernel, kernel)
            yield LayerShape(f"conv{i}", "conv", weight, stride, (width, *sides))
            channels = width

    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Return all layers from the input to the head, which is named `actor`; no critic."""
        shapes = list(self._convolutions())
        features = self.num_features + (prod(shapes[-1].output_shape) if shapes else 0)
        for i, width in enumerate(self.hidden, start=1):
            shapes.append(LayerShape(f"linear{i}", "linear", (width, features), 1, (width,)))
            features = width
        head = (self.num_outputs, features)
        shapes.append(LayerShape("actor", "linear", head, 1, (self.num_outputs,)))
        return tuple(shapes)

    @property
    def widths(self) -> str:
        """The widths as people write them (`widths_text`)."""
        return widths_text(self.conv_channels, self.hidden)

    @property
    def num_parameters(self) -> int:
        """Parameters of what is deployed: no critic head."""
        return sum(shape.num_parameters for shape in self.layer_shapes())


def widths_text(conv_channels: Sequence[int], hidden: Sequence[int]) -> str:
    """Return `4-8-8-8+8` for convolutions and hidden layers, `mlp-16-16` without convolutions."""
    layers = "-".join(map(str, hidden))
    return f"{'-'.join(map(str, conv_channels))}+{layers}" if conv_channels else f"mlp-{layers}"
