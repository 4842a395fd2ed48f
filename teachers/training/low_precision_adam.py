"""Adam in a floating format, with or without the methods of low-precision SAC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.half_arithmetic import arithmetic_of
from qpd.numerics.kernels import AdamStep, kernels, takes
from qpd.numerics.loss_scale import are_finite
from qpd.recipe.train_schema import TrainPrecision
from qpd.teachers.low_precision.compound_scale import (
    AMP_FIRST,
    AMP_GROWS_AFTER,
    GROWS_AFTER,
    CompoundScale,
)
from qpd.teachers.low_precision.hadam import (
    BETA1,
    BETA2,
    adam_moments,
    adam_step,
    hadam_moments,
    hadam_step,
)
from qpd.teachers.low_precision.kahan import (
    fitting_scale,
    kahan_add,
    kahan_soft_update,
    naive_soft_update,
)

_MOMENTS = ("exp_avg", "exp_avg_sq")


class LowPrecisionAdam(torch.optim.Adam):
    """Adam whose parameters, moments and steps are numbers of `form`, in float32 tensors.

    Methods, baseline and eps are those of the recipe's `precision`; with `compensates` sums of
    parameters and steps are Kahan's. Everything that an update needs is in the state dict:
    under `hadam` its `exp_avg_sq` is a root, and with compound scaling both moments are scaled; in
    mixed precision moments are float32, and so is `master`, of which the parameter is a copy.
    PyTorch's Adam goes on from `plain_state_dict`.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        form: FloatFormat,
        settings: TrainPrecision,
        *,
        compensates: bool,
    ) -> None:
        super().__init__(parameters, lr=lr, eps=settings.eps)
        methods, baseline = frozenset(settings.methods), settings.baseline
        self._form, self._methods, self._coerces = form, methods, baseline == "coercion"
        self._compounds, self._compensates = "compound_scale" in methods, compensates
        self._has_masters = baseline in ("mixed_precision", "placed_mixed_precision")
        self._has_target_masters = baseline == "placed_mixed_precision"
        self._unscales = baseline == "loss_scaling" or self._has_masters
        self._step_form = FloatFormat.parse("fp32") if self._has_masters else form
        is_half = self._step_form == FloatFormat.parse("fp16")
        self._dtypes = {torch.float32, torch.float16} if is_half else {torch.float32}
        is_amp = self._unscales and settings.loss_scale == "dynamic"
        self._grows_after = AMP_GROWS_AFTER if is_amp else GROWS_AFTER
        first = CompoundScale(AMP_FIRST) if is_amp else CompoundScale()
        self.param_groups[0]["updates"] = 0
        self._keep(first if self.scales else CompoundScale(1.0))

    @property
    def loss_scale(self) -> float:
        """Return the factor of the loss; the step does not depend on it."""
        return float(self.param_groups[0]["gamma"])

    @property
    def scales(self) -> bool:
        """Tell whether the loss has a scale."""
        return self._compounds or self._unscales

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
        gradients: list[Tensor] = [each.grad for each in mine]  # type: ignore[misc]
        if self._coerces:
            gradients = [self._coerced(each) for each in gradients]
        kept = group["gamma"], group["good"], group["skipped"]
        scale = CompoundScale(*kept, grows_after=self._grows_after)
        if self.scales and not are_finite(gradients):
            self._change_scale(mine, scale.after(False, []))
            return
        divisor = group["gamma"] if self._unscales else 1.0
        group["updates"] += 1
        step = self._step_of(group["updates"], scale, divisor)
        for parameter, gradient in zip(mine, gradients, strict=True):
            state = self.state[parameter]
            self._move(state.get("master", parameter), state, gradient, step)
            if self._coerces:
                for each in (parameter, *(state[key] for key in _MOMENTS)):
                    each.copy_(self._coerced(each))
            if self._has_masters:
                parameter.copy_(self._form.round(state["master"]))
            state["step"].fill_(group["updates"])
        if self.scales:  # after the step: this gradient is of the loss as it was scaled before
            with self._arithmetic():  # in which they would overflow
                moved = scale.after(True, self._compounded(mine))
            self._change_scale(mine, moved)

    def _compounded(self, parameters: list[Tensor]) -> Iterator[Tensor]:
        """Yield what a doubled scale doubles: both moments, or twice what it multiplies by 4."""
        second = 1.0 if "hadam" in self._methods else 2.0
        for each in parameters if self._compounds else ():
            yield self.state[each]["exp_avg"]
            yield second * self.state[each]["exp_avg_sq"]

    def _change_scale(self, parameters: list[Tensor], scale: CompoundScale) -> None:
        """Keep the scale of the next losses; compounded moments are moments of these."""
        if self._compounds:
            self._rescale(parameters, scale.buffer_factor)
        self._keep(scale)

    def plain_state_dict(self) -> dict[str, Any]:
        """Return `state_dict` with moments of gradients that are not scaled, for PyTorch's Adam.

        What else it keeps of a parameter stays beside them.
        """
        stored = super().state_dict()
        gamma = self.loss_scale if self._compounds else 1.0
        states = stored["state"]
        for place, state in states.items():
            first, second = state["exp_avg"].float() / gamma, state["exp_avg_sq"].float()
            is_root = "hadam" in self._methods
            second = (second / gamma).square() if is_root else second / gamma**2
            states[place] = {**state, "exp_avg": first, "exp_avg_sq": second}
        return stored

    def _step_of(self, updates: int, scale: CompoundScale, divisor: float) -> AdamStep:
        is_root = "hadam" in self._methods
        power = 0.5 if is_root else 1.0
        # The authors' least eps is a number of fp16; with fewer exponents it would be 0, and so
        # would be what it divides by where a gradient was always 0.
        least = max(scale.eps, self._step_form.smallest)
        return AdamStep(
            beta1=BETA1,
            rest1=1.0 - BETA1,
            beta2=BETA2**power,
            rest2=(1.0 - BETA2) ** power,
            correction1=1.0 - BETA1**updates,
            correction2=(1.0 - BETA2**updates) ** power,
            rate=-self.param_groups[0]["lr"],
            eps=least if self._compounds else self.param_groups[0]["eps"],
            scale=divisor,
            is_root=is_root,
        )

    def _move(self, values: Tensor, state: Any, gradient: Tensor, step: AdamStep) -> None:
        """Move `values` and the moments of their `state` in place."""
        m, v, lost = state["exp_avg"], state["exp_avg_sq"], state.get("lost")
        its = [values, m, v, gradient] if lost is None else [values, m, v, gradient, lost]
        if self._fits(*its) and (native := kernels()) is not None:
            native.adam_(values, m, v, lost, gradient, step, self._step_form.bits)
            return
        moments, change_of = (
            (hadam_moments, hadam_step) if step.is_root else (adam_moments, adam_step)
        )
        updates = self.param_groups[0]["updates"]
        with arithmetic_of(self._step_form, values.dtype):
            if step.scale != 1.0:
                gradient = gradient / step.scale
            for place, moment in zip((m, v), moments(m, v, gradient), strict=True):
                place.copy_(moment)
            change = change_of(m, v, -step.rate, step.eps, updates)
            if lost is None:
                values.add_(change)
            else:
                for place, found in zip(
                    (values, lost), kahan_add(values, lost, change), strict=True
                ):
                    place.copy_(found)

    @torch.no_grad()
    def move_target(self, target: list[Tensor], tau: float) -> None:
        """Move the target network's parameters by `tau` towards these, in their order."""
        group = self.param_groups[0]
        parameters: list[Tensor] = group["params"]
        compensates = "kahan_momentum" in self._methods and not self._has_target_masters
        if compensates and "target_scale" not in group:
            group["target_scale"] = fitting_scale(parameters, self._form.largest)
        elif compensates:
            self._shrink(parameters)
        for online, its in zip(parameters, target, strict=True):
            state = self.state[online]
            if self._has_target_masters:
                scaled = state.setdefault("target", its.detach().clone())
                scaled.copy_(naive_soft_update(scaled, state["master"], tau))
                its.copy_(self._form.round(scaled))
            elif compensates:
                self._follow(its, state, online, tau, group["target_scale"])
            else:
                with self._arithmetic():
                    its.copy_(naive_soft_update(its, online, tau))

    def _shrink(self, parameters: list[Tensor]) -> None:
        """Halve C for as long as a parameter that has grown would overflow.

        The paper's authors keep C = 1e4: once a weight is above 6.55 training ends in NaN.
        """
        group = self.param_groups[0]
        # Ten times as fast as norms.
        widest = float(torch.stack([x for each in parameters for x in each.aminmax()]).abs().max())
        while group["target_scale"] * widest > self._form.largest and group["target_scale"] > 1.0:
            group["target_scale"] /= 2.0
            with self._arithmetic():
                for each in parameters:
                    for key in ("target", "target_lost"):
                        self.state[each][key].div_(2.0)

    def _follow(self, its: Tensor, state: Any, online: Tensor, tau: float, scale: float) -> None:
        """Move a parameter of the target network in place, and its compensated sum."""
        with self._arithmetic():
            if "target" not in state:
                state.update(target=scale * its, target_lost=torch.zeros_like(its))
            scaled, lost = state["target"], state["target_lost"]
            if self._fits(its, scaled, lost, online) and (native := kernels()) is not None:
                native.soft_update_(its, scaled, lost, online, tau, scale, self._form.bits)
                return
            moved = kahan_soft_update(scaled, lost, online, tau, scale)
            for place, found in zip((scaled, lost), moved, strict=True):
                place.copy_(found)
            its.copy_(scaled / scale)

    def _arithmetic(self) -> AbstractContextManager[Any]:
        return arithmetic_of(self._form, self.param_groups[0]["params"][0].dtype)

    def _fits(self, *tensors: Tensor) -> bool:
        """Tell whether kernels take these."""
        dtype = tensors[0].dtype
        return dtype in self._dtypes and takes(*tensors, dtype=dtype)

    def _begin(self, parameters: list[Tensor]) -> None:
        for each in parameters:
            if "exp_avg" not in self.state[each]:
                keys = (*_MOMENTS, "lost") if self._compensates else _MOMENTS
                zeros = {key: torch.zeros_like(each) for key in keys}
                self.state[each].update({"step": torch.tensor(0.0), **zeros})
                if self._has_masters:
                    self.state[each]["master"] = each.detach().clone()

    def _coerced(self, x: Tensor) -> Tensor:
        largest = self._form.largest
        return x.nan_to_num(nan=0.0, posinf=largest, neginf=-largest)

    def _rescale(self, parameters: list[Tensor], factor: float) -> None:
        if factor == 1.0:
            return
        second = factor if "hadam" in self._methods else factor**2
        with self._arithmetic():
            for each in parameters:
                self.state[each]["exp_avg"].mul_(factor)
                self.state[each]["exp_avg_sq"].mul_(second)

    def _keep(self, scale: CompoundScale) -> None:
        kept = {"gamma": scale.gamma, "good": scale.good, "skipped": scale.skipped}
        self.param_groups[0].update(kept)
