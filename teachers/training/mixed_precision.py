"""Mixed precision in Stable-Baselines3's own algorithms: few bits compute, float32 weights learn.

Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740), section 3, as phases 1
and 3 have it. Linear layers and convolutions compute in the format: inputs, weights, biases and
results are rounded, and so are all gradients of these, each product once. What is between layers
and behind the heads (activations, log-probabilities, losses) is float32, rounded at the next layer.
Scaling a layer's gradients by S where they come in, and taking S off where they go out, is the same
as scaling the loss, and leaves algorithms, which clip gradients, as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.errors.codes import ErrorCode
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.layer_arithmetic import LayerArithmetic
from qpd.numerics.loss_scale import LossScale, are_finite
from qpd.recipe.train_schema import ADAM_EPS, METHODS, TrainPrecision
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.training.optimizers import optimizers_of

_ALGORITHMS = ("PPO", "A2C", "DQN", "QRDQN", "TD3", "DDPG", "TQC")


class _Rounded(torch.autograd.Function):
    """Round a tensor and its gradient, scaled where it comes into a layer, unscaled behind it."""

    @staticmethod
    def forward(ctx, x: Tensor, its: LayerArithmetic, is_result: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.its, ctx.is_result = its, is_result
        return its.form.round(x)

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[no-untyped-def]
        scale, form = ctx.its.scale.scale, ctx.its.form
        if ctx.is_result:
            return form.round(grads[0] * scale), None, None
        return form.round(grads[0]) / scale, None, None


def _rounded(x: Tensor, its: LayerArithmetic, is_result: bool = False) -> Tensor:
    found: Tensor = _Rounded.apply(x, its, is_result)
    return found


def _parameters(layer: MixedLinear | MixedConv2d) -> tuple[Tensor, Tensor | None]:
    bias = None if layer.bias is None else _rounded(layer.bias, layer.arithmetic)
    return _rounded(layer.weight, layer.arithmetic), bias


class MixedLinear(nn.Linear):
    """A linear layer that computes in a format."""

    arithmetic: LayerArithmetic

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `W x + b` `[..., out]`."""
        result = F.linear(_rounded(inputs, self.arithmetic), *_parameters(self))
        return _rounded(result, self.arithmetic, is_result=True)


class MixedConv2d(nn.Conv2d):
    """A convolution that computes in a format."""

    arithmetic: LayerArithmetic

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `W * x + b` `[batch, out, height, width]`."""
        result = self._conv_forward(_rounded(inputs, self.arithmetic), *_parameters(self))
        return _rounded(result, self.arithmetic, is_result=True)


def use_mixed_precision(model: BaseAlgorithm, settings: TrainPrecision) -> None:
    """Let a model learn in `settings.format` from now on; it plays in it, too, while it learns.

    Layers stay the same objects, with the same parameters under the same names; they, float32
    unless `master_weights` is false, are what is saved. Raises TeacherError where it cannot.
    """
    assert settings.format is not None
    _check(model, settings)
    form = FloatFormat.parse(settings.format)
    policy: Any = model.policy
    optimizers = [optimizer for _, optimizer in optimizers_of(policy)]
    arithmetic = LayerArithmetic(form, optimizers[0], first_scale(settings))
    for optimizer in optimizers:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        optimizer.register_step_pre_hook(_skipping(parameters, arithmetic, model))
        if not settings.master_weights:
            _round(parameters, form)
            optimizer.register_step_post_hook(partial(_round_after, parameters, form))
    for module in policy.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            is_linear = isinstance(module, nn.Linear)
            module.__class__ = MixedLinear if is_linear else MixedConv2d
            module.arithmetic = arithmetic  # type: ignore[assignment]


def check_of_mixed(settings: TrainPrecision, name: str) -> None:
    """Raise TeacherError for settings that are SAC's alone; `name` is the algorithm's."""
    if settings.baseline is not None or set(settings.methods) != set(METHODS):
        _refuse(f"methods and baseline are SAC's; {name} has loss_scale and master_weights")


def first_scale(settings: TrainPrecision) -> LossScale:
    """Return the loss scale that settings begin with."""
    text = str(settings.loss_scale)
    if text == "auto":
        text = "dynamic" if settings.format == "fp16" else "none"
    return LossScale.parse(text)


def _skipping(parameters: list[Tensor], its: LayerArithmetic, model: Any) -> Callable[..., None]:
    """Return what goes before a step: without gradients, where one is not finite, nothing moves."""

    def look(*_: Any) -> None:
        gradients = [each.grad for each in parameters if each.grad is not None]
        is_finite = are_finite(gradients)
        if not is_finite:
            for each in parameters:
                each.grad = None
        its.keep(its.scale.after(is_finite))
        model.logger.record("train/loss_scale", its.scale.scale)
        model.logger.record("train/skipped_updates", its.scale.skipped)

    return look


def _round_after(parameters: list[Tensor], form: FloatFormat, *_: Any) -> None:
    _round(parameters, form)


@torch.no_grad()
def _round(parameters: list[Tensor], form: FloatFormat) -> None:
    for each in parameters:
        each.copy_(form.round(each))


def _check(model: Any, settings: TrainPrecision) -> None:
    name = type(model).__name__
    if name not in _ALGORITHMS:
        _refuse(f"SAC, {', '.join(_ALGORITHMS[:-1])} and {_ALGORITHMS[-1]} learn in few bits of "
                f"floating point; {name} does not")  # fmt: skip
    check_of_mixed(settings, name)
    if settings.eps != ADAM_EPS:
        _refuse(f"eps is SAC's; {name} takes it with its policy's optimizer_kwargs")
    known = (nn.Linear, nn.Conv2d)
    for path, module in model.policy.named_modules():
        own = list(module.parameters(recurse=False))
        # A policy itself may hold log-deviations, which are no layer's.
        if own and path and not isinstance(module, known):
            _refuse(f"linear layers and convolutions alone are written for it; policy.{path} is "
                    f"{type(module).__name__}")  # fmt: skip


def _refuse(reason: str) -> None:
    raise TeacherError(f"precision: {reason}", ErrorCode.TEACHER_TRAINING)
