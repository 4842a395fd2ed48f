"""One or two critics that learn as one stack of networks, and their targets."""

from __future__ import annotations

import torch
from torch import Tensor

from qpd.teachers.off_policy.actor import stacked
from qpd.teachers.off_policy.flat_parameters import FlatAdam, FlatParameters
from qpd.teachers.off_policy.stacked_mlp import Products


class Critics:
    """Q-values of a state and an action: what learns, and the targets that follow it."""

    def __init__(
        self,
        flat: FlatParameters,
        target: FlatParameters,
        adam: FlatAdam,
        count: int,
        products: Products = None,
    ) -> None:
        """Take `count` critics; the groups of `flat` are weights and biases in turn."""
        self._flat, self._target, self._adam = flat, target, adam
        self._online = stacked(flat, count, products)
        self._followers = stacked(target, count, products)
        self._first = self._online.copy_of(0)

    def least_target(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the least of the targets' values `[batch]`."""
        values, _ = self._followers.forward(states, actions)
        return values.squeeze(1).amin(0)

    def regression(
        self, states: Tensor, actions: Tensor, wanted: Tensor, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Return weight * sum over critics of the MSE to `wanted` `[batch]`, and its gradients."""
        values, layers = self._online.forward(states, actions)
        errors = values - wanted
        gradients = self._online.gradients(errors * (2.0 * weight / len(wanted)), layers)
        return errors.square().sum() * (weight / len(wanted)), gradients

    def least(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least values `[batch]`, and their sum's gradient by the actions."""
        values, layers = self._online.forward(states, actions)
        least, which = values.squeeze(1).min(0)
        chosen = torch.zeros_like(values).scatter(0, which.view(1, 1, -1), 1.0)
        return least, self._online.input_gradient(chosen, layers, states.shape[1])

    def first(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first critic's values `[batch]`, and their sum's gradient by the actions."""
        values, layers = self._first.forward(states, actions)
        ones = torch.ones_like(values)
        return values.flatten(), self._first.input_gradient(ones, layers, states.shape[1])

    def step(self, gradients: Tensor) -> None:
        """Move the critics along their gradients."""
        self._adam.step(gradients)

    def follow(self, tau: float) -> None:
        """Move the targets by a share `tau` towards what they follow."""
        self._target.values.lerp_(self._flat.values, tau)
