"""The parameters of a network in one vector, so that Adam and the target's average are one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qpd.numerics.layer_arithmetic import LayerArithmetic

# Of torch.optim.Adam's options, those that the fast learner's step has; None means any.
_USUAL = {"weight_decay": 0, "amsgrad": False, "maximize": False}


class FlatParameters:
    """One vector that holds parameters; the modules' own tensors become views of it.

    Attributes:
        values: float `[n]`, all parameters.
        gradients: `[n]`, where hooks of an optimizer look; parameters' `grad` are views of it.
        groups: for each group of parameters its place, `[rows, ...]` (`stack` along the first
            dimension), and that of its gradient.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        """Move the parameters, group by group, into one vector.

        Those of a group differ in the first dimension at most.
        """
        parameters = [each for group in groups for each in group]
        self.parameters = parameters
        self.values = torch.cat([each.detach().reshape(-1) for each in parameters])
        self.gradients = torch.zeros_like(self.values)
        for each, value, gradient in zip(
            parameters, self.split(self.values), self.split(self.gradients), strict=True
        ):
            each.data, each.grad = value, gradient
        self._groups = groups
        self._views = self.split(self.values)

    def bind(self) -> None:
        """Take parameters back that were given other memory (`parameter.data = ...`)."""
        for each, view in zip(self.parameters, self._views, strict=True):
            if each.data_ptr() != view.data_ptr():
                view.copy_(each.detach())
                each.data = view

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a vector `[n]` that each parameter has, in its shape: views."""
        sizes = [each.numel() for each in self.parameters]
        parts = vector.split(sizes)
        return [part.view(each.shape) for part, each in zip(parts, self.parameters, strict=True)]

    def joined(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a vector `[n]` that each group has, `[rows, ...]`: views."""
        sizes = [sum(each.numel() for each in group) for group in self._groups]
        parts = vector.split(sizes)
        return [
            part.view(-1, *group[0].shape[1:])
            for part, group in zip(parts, self._groups, strict=True)
        ]


class FlatAdam:
    """Adam's step on one vector, with the learning rate and the state of an optimizer of modules.

    The optimizer's state is made of views, so that what saves and loads it knows no difference.
    With an `arithmetic` gradients are of the scaled loss; where one is not finite, nothing moves.
    """

    def __init__(
        self,
        flat: FlatParameters,
        plain: torch.optim.Optimizer,
        arithmetic: LayerArithmetic | None = None,
    ) -> None:
        """Take over from `plain`. Raises ValueError unless it is Adam with its usual options."""
        (group,) = plain.param_groups
        if type(plain) is not torch.optim.Adam or any(group[k] != v for k, v in _USUAL.items()):
            raise ValueError("only Adam without weight decay and AMSGrad")
        if {id(each) for each in group["params"]} != {id(each) for each in flat.parameters}:
            raise ValueError("the optimizer has other parameters")
        self._flat, self._plain, self._arithmetic = flat, plain, arithmetic
        self._moments = {key: torch.zeros_like(flat.values) for key in ("exp_avg", "exp_avg_sq")}
        self._step = torch.zeros((), dtype=torch.float32)
        self._round()
        self._take_over()
        plain.register_state_dict_post_hook(_with_own_steps)

    @property
    def rate(self) -> float:
        """The learning rate."""
        return float(self._plain.param_groups[0]["lr"])

    def step(self, gradients: Tensor) -> None:
        """Move the parameters along gradients `[n]`, of which a scale is taken off in place."""
        if self._plain.state[self._flat.parameters[0]].get("exp_avg") is not self._first:
            self._take_over()  # the plain one has loaded a state
            self._flat.bind()
        scale = 1.0 if self._arithmetic is None else self._arithmetic.scale.scale
        is_finite = self._arithmetic is None or self._arithmetic.unscaled([gradients])
        if hooks := self._plain._optimizer_step_pre_hooks:  # who counts gradients
            # Where one is not finite the scale was not taken off.
            self._flat.gradients.copy_(gradients if is_finite else gradients / scale)
            for hook in hooks.values():
                hook(self._plain, (), {})
        if not is_finite:
            return
        (group,) = self._plain.param_groups
        self._step += 1.0
        # torch.optim's function does the same, and takes as long around it as this takes.
        torch._fused_adam_(
            [self._flat.values],
            [gradients],
            [self._moments["exp_avg"]],
            [self._moments["exp_avg_sq"]],
            [],
            [self._step],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        self._round()

    def _round(self) -> None:
        """Round parameters that have no float32 masters."""
        if self._arithmetic is not None and not self._arithmetic.masters:
            self._arithmetic.form.round_(self._flat.values)

    def _take_over(self) -> None:
        flat, state = self._flat, self._plain.state
        views = {key: flat.split(vector) for key, vector in self._moments.items()}
        for index, each in enumerate(flat.parameters):
            if each in state:
                self._step.fill_(float(state[each]["step"]))
                for key, parts in views.items():
                    parts[index].copy_(state[each][key])
            state[each] = {"step": self._step, **{key: views[key][index] for key in views}}
        self._first = views["exp_avg"][0]


def _with_own_steps(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Give each parameter a step count of its own, as PyTorch's Adam has it.

    Loaded, a tensor that all share would count a step for each of them.
    """
    state = {key: {**each, "step": each["step"].clone()} for key, each in saved["state"].items()}
    return {**saved, "state": state}
