"""Adam in a floating format, with or without the methods of low-precision SAC."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.recipe.train_schema import Baseline
from qpd.teachers.low_precision.compound_scale import CompoundScale
from qpd.teachers.low_precision.hadam import adam_moments, adam_step, hadam_moments, hadam_step
from qpd.teachers.low_precision.kahan import (
    fitting_scale,
    kahan_add,
    kahan_soft_update,
    naive_soft_update,
)

EPS = 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")


class LowPrecisionAdam(torch.optim.Adam):
    """Adam whose parameters, moments and steps are numbers of `form`, in float32 tensors.

    `methods` and `baseline` are those of the recipe's `precision`. Everything that an update needs
    is in the state dict, which PyTorch's Adam loads, too: under `hadam` its `exp_avg_sq` is a root;
    in mixed precision moments are float32, and so is `master`, of which the parameter is a copy.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        form: FloatFormat,
        methods: frozenset[str],
        baseline: Baseline | None = None,
    ) -> None:
        super().__init__(parameters, lr=lr)
        self._form, self._methods, self._coerces = form, methods, baseline == "coercion"
        self._compounds = "compound_scale" in methods
        self._compensates = "kahan_gradients" in methods
        self._has_masters = baseline in ("mixed_precision", "placed_mixed_precision")
        self._has_target_masters = baseline == "placed_mixed_precision"
        self._unscales = baseline == "loss_scaling" or self._has_masters
        first = CompoundScale() if self._compounds or self._unscales else CompoundScale(1.0)
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
        self._begin(mine)
        m, v = (self._whole(mine, key) for key in _MOMENTS)
        gradient = _joined([each.grad for each in mine])  # type: ignore[misc]
        if self._coerces:
            gradient = self._coerced(gradient)
        scale = CompoundScale(group["gamma"], group["good"], group["skipped"])
        arithmetic = nullcontext() if self._has_masters else RoundedArithmetic(self._form)
        if self._compounds or self._unscales:
            is_finite = bool(gradient.isfinite().all())
            if self._unscales:
                with arithmetic:
                    gradient = gradient / scale.gamma
            scale = scale.after(is_finite, [m, v] if self._compounds else [])
            if self._compounds:
                m, v = self._rescaled(m, v, scale.buffer_factor)
            self._keep(scale, group["updates"])
            if not is_finite:
                self._store(mine, m, v)
                return
        self._keep(scale, group["updates"] + 1)
        eps = scale.eps if self._compounds else EPS
        is_root = "hadam" in self._methods
        moments, step = (hadam_moments, hadam_step) if is_root else (adam_moments, adam_step)
        values = self._whole(mine, "master") if self._has_masters else _joined(mine)
        with arithmetic:
            m, v = moments(m, v, gradient)
            change = step(m, v, group["lr"], eps, group["updates"])
            if self._compensates:
                values, lost = kahan_add(values, self._whole(mine, "lost"), change)
                _write(lost, [self.state[each]["lost"] for each in mine])
            else:
                values = values + change
        if self._coerces:
            values, m, v = (self._coerced(each) for each in (values, m, v))
        if self._has_masters:
            _write(values, [self.state[each]["master"] for each in mine])
            values = self._form.round(values)
        _write(values, mine)
        self._store(mine, m, v)

    @torch.no_grad()
    def move_target(self, target: list[Tensor], tau: float) -> None:
        """Move the target network's parameters by `tau` towards these, in their order."""
        group = self.param_groups[0]
        parameters: list[Tensor] = group["params"]
        states = [self.state[each] for each in parameters]
        online, its = _joined(parameters), _joined(target)
        if "kahan_momentum" not in self._methods and not self._has_target_masters:
            with RoundedArithmetic(self._form):
                its = naive_soft_update(its, online, tau)
            _write(its, target)
            return
        if "target" not in states[0]:
            if not self._has_target_masters:
                group["target_scale"] = fitting_scale(parameters, self._form.largest)
            with RoundedArithmetic(self._form):
                first = group.get("target_scale", 1.0) * its
            for state, part in zip(states, _split(first, target), strict=True):
                state.update(target=part.clone(), target_lost=torch.zeros_like(part))
        scaled, lost = self._whole(parameters, "target"), self._whole(parameters, "target_lost")
        if self._has_target_masters:
            scaled = naive_soft_update(scaled, self._whole(parameters, "master"), tau)
            its = self._form.round(scaled)
        else:
            scale: float = group["target_scale"]
            with RoundedArithmetic(self._form):
                scaled, lost = kahan_soft_update(scaled, lost, online, tau, scale)
                its = scaled / scale
        _write(its, target)
        _write(scaled, [state["target"] for state in states])
        _write(lost, [state["target_lost"] for state in states])

    def _begin(self, parameters: list[Tensor]) -> None:
        for each in parameters:
            if "exp_avg" not in self.state[each]:
                keys = (*_MOMENTS, "lost") if self._compensates else _MOMENTS
                zeros = {key: torch.zeros_like(each) for key in keys}
                self.state[each].update({"step": torch.tensor(0.0), **zeros})
                if self._has_masters:
                    self.state[each]["master"] = each.detach().clone()

    def _whole(self, parameters: list[Tensor], key: str) -> Tensor:
        return _joined([self.state[each][key] for each in parameters])

    def _coerced(self, x: Tensor) -> Tensor:
        largest = self._form.largest
        return x.nan_to_num(nan=0.0, posinf=largest, neginf=-largest)

    def _rescaled(self, m: Tensor, v: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        if factor == 1.0:
            return m, v
        second = factor if "hadam" in self._methods else factor**2
        with RoundedArithmetic(self._form):
            return factor * m, second * v

    def _store(self, parameters: list[Tensor], m: Tensor, v: Tensor) -> None:
        states = [self.state[each] for each in parameters]
        for key, whole in zip(_MOMENTS, (m, v), strict=True):
            _write(whole, [state[key] for state in states])
        for state in states:
            state["step"].fill_(self.param_groups[0]["updates"])

    def _keep(self, scale: CompoundScale, updates: int) -> None:
        kept = {"gamma": scale.gamma, "good": scale.good, "skipped": scale.skipped}
        self.param_groups[0].update(kept, updates=updates)


def _joined(tensors: list[Tensor]) -> Tensor:
    """Return one vector of them all: one operation for all is faster than one for each."""
    return torch.cat([each.reshape(-1) for each in tensors])


def _split(vector: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = vector.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]


def _write(vector: Tensor, places: list[Tensor]) -> None:
    torch._foreach_copy_(places, _split(vector, places))
