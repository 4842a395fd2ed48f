"""SB3's features extractors: NatureCNN, none for vectors, and both for a Dict with images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.teachers.networks.layers import convolution, linear, refuse_unknown, under

NATURE_CNN_LAYERS = ((8, 4), (4, 2), (3, 1))  # (kernel, stride), Mnih et al. 2015


class NatureCnn(nn.Module):
    """Three convolutions and a linear layer, ReLU after each.

    Input float [batch, channels, height, width]; output float [batch, features].
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take `cnn.{0,2,4}` and `linear.0` as they are; TeacherError if they do not fit."""
        super().__init__()
        layers = [
            convolution(tensors, f"cnn.{2 * index}", kernel, stride)
            for index, (kernel, stride) in enumerate(NATURE_CNN_LAYERS)
        ]
        self.convolutions = nn.ModuleList(layers)
        self.in_channels, self.out_channels = layers[0].in_channels, layers[-1].out_channels
        self.linear = linear(tensors, "linear.0")

    def forward(self, images: Tensor) -> Tensor:
        """Return the features; keeps a channels-last layout through the convolutions."""
        for layer in self.convolutions:
            images = F.relu(layer(images))
        return F.relu(self.linear(images.flatten(1)))

    def flat_size(self, height: int, width: int) -> int:
        """Return how many numbers the convolutions leave of an image."""
        for kernel, stride in NATURE_CNN_LAYERS:
            height = (height - kernel) // stride + 1
            width = (width - kernel) // stride + 1
        return height * width * self.out_channels if min(height, width) > 0 else 0


class CombinedFeatures(nn.Module):
    """SB3's CombinedExtractor over QPD's order of a Dict's parts: its images come first.

    `parts` are each part's key, first number and shape, in SB3's order; `place` sets them.
    """

    def __init__(self, images: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take each image's NatureCNN, by key; TeacherError if its tensors do not fit."""
        super().__init__()
        self.images = {key: NatureCnn(tensors) for key, tensors in images.items()}
        # Not a ModuleDict: some keys, such as `type`, are names of its own.
        self._modules_of_images = nn.ModuleList(self.images.values())
        self.parts: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
        self._scale = 1.0

    def place(self, parts: Sequence[tuple[str, int, tuple[int, ...]]], scale: float) -> None:
        """Set the `parts`, and what divides pixels."""
        self.parts, self._scale = tuple(parts), scale

    def forward(self, observations: Tensor) -> Tensor:
        """Map float `[batch, pixels and features]`, or images, to features `[batch, n]`."""
        flat, found = observations.flatten(1), []
        for key, first, shape in self.parts:
            part = flat[:, first : first + prod(shape)]
            if key in self.images:
                part = self.images[key](part.unflatten(1, shape) / self._scale)
            found.append(part)
        return torch.cat(found, 1)


def extractor(tensors: Mapping[str, Tensor]) -> nn.Module:
    """Make the extractor of the tensors under its name; none are those of MlpPolicy's."""
    # MlpPolicy's FlattenExtractor has no parameters.
    if not tensors:
        return nn.Flatten()
    # In the Dict's order, which is that of the layers that were quantized.
    seen = dict.fromkeys(key.split(".")[1] for key in tensors if key.startswith("extractors."))
    if seen:  # SB3's CombinedExtractor has parameters for images alone
        names = {key: f"extractors.{key}." for key in seen}
        refuse_unknown(tensors, tuple(names.values()))
        return CombinedFeatures({key: under(tensors, name) for key, name in names.items()})
    refuse_unknown(tensors, ("cnn.0.", "cnn.2.", "cnn.4.", "linear.0."))
    return NatureCnn(tensors)


def two_extractors(
    actor: Mapping[str, Tensor], critic: Mapping[str, Tensor]
) -> tuple[nn.Module, nn.Module]:
    """Make the actor's and the critic's extractor: one module where their numbers are equal.

    SB3 saves a shared extractor under the name of each; equal numbers mean that it was one.
    """
    same = actor.keys() == critic.keys() and all(
        torch.equal(actor[key], critic[key]) for key in actor
    )
    first = extractor(actor)
    return first, first if same else extractor(critic)
