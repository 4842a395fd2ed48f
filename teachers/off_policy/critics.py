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
        self._followers.share_memory_with(self._online)  # less of it stays in the cache

    def least_target(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return the least of the targets' values `[batch]`."""
        values = self._followers.forward(states, actions)
        return values.squeeze(1).amin(0)

    def regress(self, states: Tensor, actions: Tensor, wanted: Tensor, weight: float) -> float:
        """Take a step towards `wanted` `[batch]`; return weight * sum over critics of the MSE."""
        values = self._online.forward(states, actions)
        errors = values - wanted
        self._online.backward(errors * (2.0 * weight / len(wanted)))
        self._adam.step()
        self._online.refresh()
        return weight * float(errors.square().sum()) / len(wanted)

    def least(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least values `[batch]`, and their sum's gradient by the actions."""
        values = self._online.forward(states, actions)
        least, which = values.squeeze(1).min(0)
        chosen = torch.zeros_like(values).scatter_(0, which.view(1, 1, -1), 1.0)
        return least, self._online.input_gradient(chosen, states.shape[1])

    def first(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first critic's values `[batch]`, and their sum's gradient by the actions."""
        values = self._first.forward(states, actions)
        gradient = self._first.input_gradient(torch.ones_like(values), states.shape[1])
        return values.flatten(), gradient

    def refresh(self) -> None:
        """Hear that parameters have been loaded."""
        self._online.refresh()
        self._followers.refresh()

    def follow(self, tau: float) -> None:
        """Move the targets by a share `tau` towards what they follow."""
        self._target.values.lerp_(self._flat.values, tau)
        self._followers.refresh()
