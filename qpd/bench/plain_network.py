"""A student in PyTorch's ordinary layout, as it would be deployed.

`students.Student` rearranges its weights at every call, which pays off for large batches only: with
one observation at a time an XL student would be ten times slower.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from qpd.students import Student
from qpd.students.student import INPUT_LEVELS


class PlainNetwork(nn.Module):
    """Actor and critic head over the trunk, fp32: the paper's Table 1 computes both."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        convolutions: list[nn.Module] = []
        linear: list[nn.Module] = []
        for shape in student.shapes[:-1]:
            modules = convolutions if shape.kind == "conv" else linear
            modules += [student.layer(shape.name), student.architecture.function.module()]
        self.convolutions, self.linear = nn.Sequential(*convolutions), nn.Sequential(*linear)
        self.actor, self.critic = student.actor, student.critic
        self.student = student if student.architecture.num_features else None

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, actions]` and values `[batch, 1]` of uint8 frames or vectors."""
        parts = []
        if len(self.convolutions):
            image = observations if self.student is None else self.student.encode(observations)
            scaled = image.to(self.actor.weight.dtype) / INPUT_LEVELS
            parts.append(self.convolutions(scaled).flatten(1))
        if self.student is not None:
            parts.append(self.student.feature_values(observations).to(self.actor.weight.dtype))
        hidden = self.linear(torch.cat(parts, 1) if len(parts) > 1 else parts[0])
        return self.actor(hidden), self.critic(hidden)


@torch.no_grad()
def exact_logits(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of a double-precision copy of `network`, float64 `[batch, actions]`."""
    logits: Tensor = copy.deepcopy(network).double()(inputs)[0]
    return logits
