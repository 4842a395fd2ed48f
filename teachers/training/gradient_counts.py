"""Gradients of an agent that learns, counted by exponent now and then."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn

from qpd.numerics.gradient_exponents import NONE_COUNTED, GradientExponents
from qpd.students.activations import activation_of_module
from qpd.teachers.training.layer_norm import LayerNormed
from qpd.teachers.training.optimizers import optimizers_of


class GradientCounts:
    """Counts gradients at every `every`-th step of each optimizer, from the first on.

    Of all weights, with loss scales taken off and before algorithms clip them; and by what
    activations return, in networks that are modules. Changes no number where nothing is compiled;
    Atari's blocked frames are left out (`AtariManager`).
    """

    def __init__(self, model: BaseAlgorithm, every: int) -> None:
        self._every = every
        self._optimizers = [optimizer for _, optimizer in optimizers_of(model.policy)]
        self._steps = [0] * len(self._optimizers)
        self._seen: list[list[Tensor]] = [[] for _ in self._optimizers]
        self._unclipped: list[dict[Tensor, Tensor]] = [{} for _ in self._optimizers]
        self._weights = self._activations = NONE_COUNTED
        for which, (network, optimizer) in enumerate(optimizers_of(model.policy)):
            optimizer.register_step_pre_hook(self._before_step(which))
            for group in optimizer.param_groups:
                for each in group["params"]:
                    each.register_post_accumulate_grad_hook(self._after_backward(which))
            for module in network.modules():
                known = activation_of_module(type(module).__name__) is not None
                if known or isinstance(module, LayerNormed):
                    module.register_forward_hook(self._after_activation(which))

    def begin_segment(self) -> None:
        """Count anew when the next gradients are due: at a checkpoint, and when one resumes."""
        self._steps = [0] * len(self._optimizers)

    def take(self) -> tuple[float, GradientExponents, GradientExponents] | None:
        """Return the loss scale now, and what was counted since the last call, or None."""
        weights, activations = self._weights, self._activations
        if not weights.total:
            return None
        self._weights = self._activations = NONE_COUNTED
        return self._scale(), weights, activations

    def _scale(self) -> float:
        group = self._optimizers[0].param_groups[0]
        return float(group.get("gamma", group.get("loss_scale", 1.0)))

    def _before_step(self, which: int) -> Any:
        def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            is_due = self._steps[which] % self._every == 0
            self._steps[which] += 1
            seen, unclipped = self._seen[which], self._unclipped[which]
            for earlier in range(which + 1):
                # The critic's gradients by the actor's loss are none of the critic's updates.
                self._seen[earlier], self._unclipped[earlier] = [], {}
            if not is_due:
                return
            # Compound scaling leaves its factor on; the others take theirs off before.
            factor = float(optimizer.param_groups[0].get("gamma", 1.0))
            found = [
                unclipped.get(each, each.grad)
                for group in optimizer.param_groups for each in group["params"]
                if each.grad is not None
            ]  # fmt: skip
            self._weights += GradientExponents.of(each.float() / factor for each in found)
            self._activations += GradientExponents.of(each.float() / factor for each in seen)

        return count

    def _after_backward(self, which: int) -> Any:
        def keep(parameter: Tensor) -> None:
            if self._steps[which] % self._every == 0 and parameter.grad is not None:
                self._unclipped[which][parameter] = parameter.grad.clone()

        return keep

    def _after_activation(self, which: int) -> Any:
        def see(gradient: Tensor) -> None:
            self._seen[which].append(gradient)

        def follow(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if output.requires_grad and self._steps[which] % self._every == 0:
                output.register_hook(see)

        return follow
