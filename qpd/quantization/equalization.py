"""Channel equalization: the same float function, with activations that share one range well.

ReLU commutes with positive factors, so a channel can be divided by r in its own layer and
multiplied by r in the next one (Nagel et al. 2019, cross-layer equalization; SmoothQuant shares
the idea). Activations have one step per layer; where one channel reaches 50 and another 1.5,
the second keeps 3 bits of 8. Deployment costs nothing: it is in the weights.

`equalize` looks at activations alone, which suits students trained through quantizers. `balance`
looks at the next layer's weights too, which suits agents that nobody trained for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qpd.students import Student
from qpd.students.student import INPUT_LEVELS

# A channel that is all but dead would otherwise be blown up until its noise fills the range.
MAX_FACTOR = 64.0
MAX_BALANCE = 1024.0  # likewise, either way: layers of agents differ more


@torch.no_grad()
def equalize(student: Student, observations: Tensor, strength: float) -> None:
    """Rescale the hidden channels of `student` in place, by the activations on `observations`.

    A channel whose largest activation is m, where its layer's largest is t, is multiplied by
    `(t / m) ** strength`, at most 64: strength 1 gives every channel the whole range, and leaves
    the next layer's weights uneven; 0 changes nothing. Dead channels stay as they are.
    Students with another function than ReLU, such as tanh, stay as they are.
    observations: uint8 frames (blocked or not) or float32 vectors, `[batch, ...]`.
    """

    def even(peaks: Tensor, weight: Tensor) -> Tensor:
        ratio = peaks.amax() / peaks.clamp_min(1e-12)
        return torch.where(peaks > 0, ratio.pow(strength).clamp_max(MAX_FACTOR), 1.0)

    _rescale(student, observations, even)


@torch.no_grad()
def balance(student: Student, observations: Tensor) -> None:
    """Rescale the hidden channels of `student` in place, by activations and by what they meet.

    A channel whose largest activation is m, and whose largest weight in the next layer is w, gets
    `sqrt(m w)` for both, up to a factor that all channels share (SmoothQuant, Xiao et al. 2023,
    at alpha 1/2; Nagel et al. 2019 with activations). A channel that no observation activates gets
    the factor of the others' median. Students with another function than ReLU stay as they are.
    observations: as in `equalize`.
    """

    def middle(peaks: Tensor, weight: Tensor) -> Tensor:
        columns = weight.abs().amax((0, 2))
        known = (peaks > 0) & (columns > 0)
        if not known.any():
            return torch.ones_like(peaks)
        factor = (columns / peaks).sqrt()
        median = factor[known].median()
        most = MAX_BALANCE
        return torch.where(known, (factor / median).clamp(1.0 / most, most), 1.0)

    _rescale(student, observations, middle)


def _rescale(
    student: Student, observations: Tensor, factors: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Multiply hidden channels by `factors` of their peaks and of the next layer's weight.

    That weight is `[out, channels, inputs of each]`.
    """
    if student.architecture.activation != "relu":
        return
    levels, apply = student.inputs_and_layers(observations)
    levels = levels.float()
    for position, shape in enumerate(student.shapes[:-1]):
        layer = student.layer(shape.name)
        # `encode` gives levels 0..255; the float student has the factor 1/255 in its first layer.
        weight = layer.weight / INPUT_LEVELS if position == 0 else layer.weight
        levels = F.relu_(apply(shape, levels, weight, layer.bias))
        peaks = levels.amax([axis for axis in range(levels.dim()) if axis != 1])
        following = student.shapes[position + 1].name
        factor = factors(peaks, student.by_channel(following, len(peaks)))
        layer.weight.mul_(factor.view(-1, *(1,) * (layer.weight.dim() - 1)))
        student.bias(shape.name).mul_(factor)
        levels = levels * factor.view(1, -1, *(1,) * (levels.dim() - 2))
        # The critic reads the same features as the actor: phase 3 still trains it, so it is divided
        # too.
        for name in [following, "critic"] if following == "actor" else [following]:
            student.by_channel(name, len(factor)).div_(factor.view(1, -1, 1))
