"""NatureCNN with other widths: QuaRL's policies A, B and C have 128 to 1024 channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn


class SizedNatureCNN(NatureCNN):
    """Mnih et al.'s kernels and strides, with `channels` and `features_dim` of one's own."""

    def __init__(
        self,
        observation_space: spaces.Box,
        features_dim: int = 512,
        normalized_image: bool = False,
        channels: Sequence[int] = (32, 64, 64),
    ) -> None:
        """Build the layers; `channels` of the three convolutions."""
        super().__init__(observation_space, features_dim, normalized_image)
        before = observation_space.shape[0]
        for position, after in zip((0, 2, 4), channels, strict=True):
            old = self.cnn[position]
            assert isinstance(old, nn.Conv2d)
            kernel, stride = old.kernel_size[0], old.stride[0]
            self.cnn[position] = nn.Conv2d(before, after, kernel, stride)
            before = after
        with torch.no_grad():
            seen = self.cnn(torch.zeros(1, *observation_space.shape))
        self.linear = nn.Sequential(nn.Linear(prod(seen.shape), features_dim), nn.ReLU())
