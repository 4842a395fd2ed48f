"""Recycling of dormant units (ReDo, Sokar et al. 2023): units of ReLU that no state activates.

High learning rates learn far faster here, but their first steps push ReLUs below zero for every
state: in an XXS student up to half of the last hidden layer. Such a unit gets fresh incoming
weights, and outgoing weights of zero, so the function that the student computes does not change.
Under quantizers it does: their odd integers have no zero, and the least stands for it (a fortieth
of the outputs' spread at 8 bits for four units of 16, and more with fewer bits).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from qpd.students import Student

# Flat below zero. Of the others some are flat far from zero only, where few units get stuck.
RECYCLED = ("relu", "relu6")


def dormant_units(hidden: Tensor) -> Tensor:
    """Find units with no positive activation in `[batch, channels, ...]`: bool `[channels]`."""
    return hidden.amax([axis for axis in range(hidden.dim()) if axis != 1]) <= 0


@torch.no_grad()
def recycle_dormant_units(
    student: Student, optimizer: torch.optim.Optimizer, hidden: Iterable[Tensor], seed: int
) -> dict[str, Tensor]:
    """Reinitialise the units that are 0 in all of `hidden`, and return which, by layer's name.

    `hidden` yields each hidden layer's activations, `[batch, channels, ...]`. A unit is a channel
    of a convolution or of a hidden linear layer. Its incoming weights are drawn from
    N(0, 2 / fan_in), its bias is 0; the optimizer forgets its gradient and takes its scale from the
    layer's other units. Returns bool `[channels]` for each layer that has such units. The function
    is one of `RECYCLED`.
    """
    generator = torch.Generator().manual_seed(seed)
    recycled = {}
    shapes = student.shapes
    for position, activations in enumerate(hidden):
        units = dormant_units(activations)
        count = int(units.sum())
        if count == 0:
            continue
        name = shapes[position].name
        recycled[name] = units
        layer, bias = student.layer(name), student.bias(name)
        fresh = torch.randn((count, *layer.weight.shape[1:]), generator=generator)
        layer.weight[units] = fresh.to(layer.weight) * (2.0 / fresh[0].numel()) ** 0.5
        bias[units] = 0.0
        following = shapes[position + 1].name
        for after in [following, "critic"] if following == "actor" else [following]:
            student.by_channel(after, len(units))[:, units] = 0.0
        for parameter in (layer.weight, bias):
            _forget(optimizer, parameter, units)
    return recycled


def _forget(optimizer: torch.optim.Optimizer, parameter: Tensor, units: Tensor) -> None:
    """Reset the optimizer state of `units` of `parameter`: its tensors depend on the optimizer."""
    state = optimizer.state.get(parameter, {})
    for name, moment in state.items():
        if isinstance(moment, Tensor) and moment.shape == parameter.shape:
            scale = moment[~units].mean() if name in ("exp_avg_sq", "square_avg") else 0.0
            moment[units] = scale if (~units).any() else 0.0
