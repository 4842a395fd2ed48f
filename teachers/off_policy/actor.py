"""Learn as an actor: a protocol, and the float network whose gradients are by hand."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from qpd.teachers.off_policy.flat_parameters import FlatAdam, FlatParameters
from qpd.teachers.off_policy.stacked_mlp import Products, StackedMlp


class Actor(Protocol):
    """An actor that learns: SAC's outputs are means and log-deviations, others' are means.

    All are as of before the tanh.
    """

    def outputs(self, *states: Tensor) -> list[Tensor]:
        """Map each batch of states `[batch, features]` to outputs `[batch, n]`.

        The first batch is the one that is learned from.
        """

    def learn(self, gradient: Tensor) -> None:
        """Take a step along the gradient `[batch, n]` of the first outputs."""

    def refresh(self) -> None:
        """Hear that the parameters have changed."""


class FloatActor:
    """An MLP with ReLU, all parameters in one vector."""

    def __init__(self, flat: FlatParameters, adam: FlatAdam | None, products: Products) -> None:
        """Take the groups of `flat` as weights and biases in turn; a target has no `adam`."""
        self._adam = adam
        self._network = stacked(flat, 1, products)

    def outputs(self, *states: Tensor) -> list[Tensor]:
        """Map each batch of states to outputs, in one pass."""
        together = states[0] if len(states) == 1 else torch.cat(states)
        found = self._network.forward(together)[0].T
        return list(found.split([len(each) for each in states]))

    def learn(self, gradient: Tensor) -> None:
        """Take a step along the gradient of the first outputs."""
        assert self._adam is not None
        self._network.backward(gradient.T.unsqueeze(0))
        self._adam.step()
        self._network.refresh()

    def refresh(self) -> None:
        """Hear that the parameters have changed."""
        self._network.refresh()


def stacked(flat: FlatParameters, copies: int, products: Products) -> StackedMlp:
    """Return the networks whose weights and biases are the groups of `flat` in turn."""
    values, gradients = (
        [each.view(copies, -1, *each.shape[1:]) for each in flat.joined(vector)]
        for vector in (flat.values, flat.gradients)
    )
    return StackedMlp(values[::2], values[1::2], (gradients[::2], gradients[1::2]), products)
