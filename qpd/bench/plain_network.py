"""A student in PyTorch's ordinary layout, as it would be deployed.

`students.Student` rearranges its weights at every call, which pays off for large batches only: with
one observation at a time an XL student would be ten times slower.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from qpd.students import Student
from qpd.students.student import FIRST_LINEAR, INPUT_LEVELS


class PlainNetwork(nn.Module):
    """Actor and critic head over the trunk, fp32: the paper's Table 1 computes both."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for shape in student.shapes[:-1]:
            if shape.name == FIRST_LINEAR and student.architecture.is_image:
                modules.append(nn.Flatten())
            modules += [student.layer(shape.name), student.architecture.function.module()]
        self.trunk = nn.Sequential(*modules)
        self.actor, self.critic = student.actor, student.critic
        self.is_image = student.architecture.is_image
        self.student = None if self.is_image else student

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, actions]` and values `[batch, 1]` of uint8 frames or vectors."""
        if self.student is not None and self.student.architecture.joins_features:
            features = self.student.features(observations)
            return self.actor(features), self.critic(features)
        if self.student is not None:
            inputs = self.student.encode(observations) / INPUT_LEVELS
        else:
            inputs = observations.to(self.actor.weight.dtype) / INPUT_LEVELS
        features = self.trunk(inputs)
        return self.actor(features), self.critic(features)


@torch.no_grad()
def exact_logits(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of a double-precision copy of `network`, float64 `[batch, actions]`."""
    logits: Tensor = copy.deepcopy(network).double()(inputs)[0]
    return logits
