"""Adam in a floating format, with or without the methods of low-precision SAC."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.teachers.low_precision.compound_scale import CompoundScale
from qpd.teachers.low_precision.hadam import adam_moments, adam_step, hadam_moments, hadam_step
from qpd.teachers.low_precision.kahan import (
    fitting_scale,
    kahan_add,
    kahan_soft_update,
    naive_soft_update,
)

EPS = 1e-8


class LowPrecisionAdam(torch.optim.Adam):
    """Adam whose parameters, moments and steps are numbers of `form`, in float32 tensors.

    `methods` are those of `precision.methods`. Everything that an update needs is in the state
    dict, which PyTorch's Adam loads, too: under `hadam` its `exp_avg_sq` is a root.
    """

    def __init__(
        self, parameters: Iterable[Any], lr: float, form: FloatFormat, methods: frozenset[str]
    ) -> None:
        super().__init__(parameters, lr=lr)
        self._form, self._methods = form, methods
        first = CompoundScale() if "compound_scale" in methods else CompoundScale(1.0)
        self._keep(first, updates=0)

    @property
    def loss_scale(self) -> float:
        """Return the factor of the loss; the step does not depend on it."""
        return float(self.param_groups[0]["gamma"])

    @property
    def skipped(self) -> int:
        """The updates that were skipped as their gradients were not finite."""
        return int(self.param_groups[0]["skipped"])

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the parameters by the gradients of the scaled loss, or skip the update."""
        group = self.param_groups[0]
        mine: list[Tensor] = [each for each in group["params"] if each.grad is not None]
        for each in mine:
            if "exp_avg" not in self.state[each]:
                zeros = {key: torch.zeros_like(each) for key in ("exp_avg", "exp_avg_sq", "lost")}
                self.state[each].update({"step": torch.tensor(0.0), **zeros})
        scale = CompoundScale(group["gamma"], group["good"], group["skipped"])
        if "compound_scale" in self._methods:
            is_finite = all(bool(each.grad.isfinite().all()) for each in mine)  # type: ignore
            keys = ("exp_avg", "exp_avg_sq")
            scale = scale.after(is_finite, [self.state[each][key] for each in mine for key in keys])
            self._rescale(mine, scale.buffer_factor)
            self._keep(scale, group["updates"])
            if not is_finite:
                return
        eps = scale.eps if "compound_scale" in self._methods else EPS
        self._keep(scale, group["updates"] + 1)
        for each in mine:
            self._move(each, self.state[each], group["lr"], eps, group["updates"])

    @torch.no_grad()
    def move_target(self, target: list[Tensor], tau: float) -> None:
        """Move the target network's parameters by `tau` towards these, in their order."""
        group = self.param_groups[0]
        online: list[Tensor] = group["params"]
        if "kahan_momentum" not in self._methods:
            with RoundedArithmetic(self._form):
                for its, mine in zip(target, online, strict=True):
                    its.copy_(naive_soft_update(its, mine, tau))
            return
        if "target_scale" not in group:
            group["target_scale"] = fitting_scale(online, self._form.largest)
        scale: float = group["target_scale"]
        for its, mine in zip(target, online, strict=True):
            state = self.state[mine]
            with RoundedArithmetic(self._form):
                if "target" not in state:
                    state["target"], state["target_lost"] = scale * its, torch.zeros_like(its)
                state["target"], state["target_lost"] = kahan_soft_update(
                    state["target"], state["target_lost"], mine, tau, scale
                )
                its.copy_(state["target"] / scale)

    def _move(self, x: Tensor, state: dict[str, Any], lr: float, eps: float, updates: int) -> None:
        assert x.grad is not None
        is_root = "hadam" in self._methods
        moments, step = (hadam_moments, hadam_step) if is_root else (adam_moments, adam_step)
        with RoundedArithmetic(self._form):
            m, v = moments(state["exp_avg"], state["exp_avg_sq"], x.grad)
            change = step(m, v, lr, eps, updates)
            lost = state["lost"]
            if "kahan_gradients" in self._methods:
                moved, lost = kahan_add(x, lost, change)
            else:
                moved = x + change
            x.copy_(moved)
        state.update(exp_avg=m, exp_avg_sq=v, lost=lost)
        state["step"].fill_(updates)

    def _rescale(self, parameters: list[Tensor], factor: float) -> None:
        if factor == 1.0:
            return
        second = factor if "hadam" in self._methods else factor**2
        for each in parameters:
            state = self.state[each]
            state["exp_avg"] = self._form.round(factor * state["exp_avg"])
            state["exp_avg_sq"] = self._form.round(second * state["exp_avg_sq"])

    def _keep(self, scale: CompoundScale, updates: int) -> None:
        kept = {"gamma": scale.gamma, "good": scale.good, "skipped": scale.skipped}
        self.param_groups[0].update(kept, updates=updates)
