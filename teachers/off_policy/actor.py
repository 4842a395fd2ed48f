"""Learn as an actor: a protocol, and the float network whose gradients are by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from qpd.teachers.off_policy.flat_parameters import FlatAdam, FlatParameters
from qpd.teachers.off_policy.stacked_mlp import Products, StackedMlp


class Actor(Protocol):
    """An actor that learns: SAC's outputs are means and log-deviations, others' are means.

    All are as of before the tanh.
    """

    @property
    def stage(self) -> int | None:
        """Tell which function it is: what is compiled holds until this changes.

        None where it does more than to return tensors, which no compiled function would.
        """

    def outputs(self, *states: Tensor) -> tuple[list[Tensor], Sequence[Tensor]]:
        """Map each batch of states `[batch, features]` to outputs `[batch, n]`.

        The first batch is the one that is learned from. The other result, of one tensor or more, is
        for `gradients`.
        """

    def act(self, states: Tensor) -> Tensor:
        """Map the states `[n, features]` of a step of play to outputs, in float32."""

    def gradients(self, gradient: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """Return what `step` takes, a vector, for the gradients `[batch, n]` of the outputs."""

    def step(self, gradients: Tensor) -> None:
        """Move the parameters along their gradients."""


class FloatActor:
    """An MLP with ReLU, all parameters in one vector."""

    stage = 0

    def __init__(self, flat: FlatParameters, adam: FlatAdam | None, products: Products) -> None:
        """Take the groups of `flat` as weights and biases in turn; a target has no `adam`."""
        self._adam = adam
        self._network = stacked(flat, 1, products)

    def outputs(self, *states: Tensor) -> tuple[list[Tensor], Sequence[Tensor]]:
        """Map each batch of states to outputs, in one pass."""
        together = states[0] if len(states) == 1 else torch.cat(states)
        found, layers = self._network.forward(together)
        return list(found[0].T.split([len(each) for each in states])), layers

    def act(self, states: Tensor) -> Tensor:
        """Map states to outputs."""
        return self._network.outputs(states)

    def gradients(self, gradient: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """Return the gradients, by hand."""
        return self._network.gradients(gradient.T.unsqueeze(0), kept)

    def step(self, gradients: Tensor) -> None:
        """Take Adam's step."""
        assert self._adam is not None
        self._adam.step(gradients)


def stacked(flat: FlatParameters, copies: int, products: Products) -> StackedMlp:
    """Return the networks whose weights and biases are the groups of `flat` in turn."""
    values = [each.view(copies, -1, *each.shape[1:]) for each in flat.joined(flat.values)]
    return StackedMlp(values[::2], values[1::2], products)
