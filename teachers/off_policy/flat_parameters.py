"""The parameters of a network in one vector, so that Adam and the target's average are one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Of torch.optim.Adam's options, those that the fast learner's step has; None means any.
_USUAL = {"weight_decay": 0, "amsgrad": False, "maximize": False}


class FlatParameters:
    """One vector that holds parameters; the modules' own tensors become views of it.

    Attributes:
        values: float `[n]`, all parameters.
        gradients: `[n]`, theirs; every parameter's `grad` is a view of it.
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
    """

    def __init__(self, flat: FlatParameters, plain: torch.optim.Optimizer) -> None:
        """Take over from `plain`. Raises ValueError unless it is Adam with its usual options."""
        (group,) = plain.param_groups
        if type(plain) is not torch.optim.Adam or any(group[k] != v for k, v in _USUAL.items()):
            raise ValueError("only Adam without weight decay and AMSGrad")
        if {id(each) for each in group["params"]} != {id(each) for each in flat.parameters}:
            raise ValueError("the optimizer has other parameters")
        self._flat, self._plain = flat, plain
        values = nn.Parameter(flat.values, requires_grad=False)  # the same memory
        values.grad = flat.gradients
        self._adam = torch.optim.Adam(
            [values], lr=group["lr"], betas=group["betas"], eps=group["eps"], fused=True
        )
        self._state = self._adam.state[values] = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": torch.zeros_like(flat.values),
            "exp_avg_sq": torch.zeros_like(flat.values),
        }
        self._take_over()

    def step(self) -> None:
        """Move the parameters along their gradients."""
        if self._plain.state[self._flat.parameters[0]].get("exp_avg") is not self._first:
            self._take_over()  # the plain one has loaded a state
        self._adam.param_groups[0]["lr"] = self._plain.param_groups[0]["lr"]
        self._adam.step()

    def _take_over(self) -> None:
        flat, state = self._flat, self._plain.state
        moments = ("exp_avg", "exp_avg_sq")
        views = {key: flat.split(self._state[key]) for key in moments}
        for index, each in enumerate(flat.parameters):
            if each in state:
                self._state["step"].fill_(float(state[each]["step"]))
                for key in moments:
                    views[key][index].copy_(state[each][key])
            mine = {key: views[key][index] for key in moments}
            state[each] = {"step": self._state["step"], **mine}
        self._first = views["exp_avg"][0]
