"""Mixed precision of phases 1 and 3: a few bits compute, float32 masters learn.

Micikevicius et al., Mixed Precision Training (ICLR 2018, arXiv 1710.03740), section 3: forward and
backward pass in the format, products summed in float32 and rounded once; the loss times S; weight
gradients divided by S in float32 before anything reads them; an update whose gradients are not
finite is skipped. In phase 3 the forward pass is the integer grid's, with the masters as its
straight-through weights: rounded are gradients by activations and weights, in values, not levels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from qpd.numerics.loss_scale import unscale
from qpd.numerics.master_weights import MasterWeights
from qpd.numerics.precision import simulated_format
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import TrainingPhase
from qpd.students import Student
from qpd.training.gradient_scaling import GradientScaling


class MixedPrecision:
    """The arithmetic of a phase's updates; without `scaling`, PyTorch's own.

    `module` computes; the parameters of the trained module, of which it may be a copy, learn.
    """

    def __init__(
        self, trained: nn.Module, settings: TrainingPhase, scaling: GradientScaling | None
    ) -> None:
        self._trained, self._scaling, self.module = trained, scaling, trained
        self._parameters = list(trained.parameters())
        self.form = simulated_format(settings.precision)
        self._masters: MasterWeights | None = None
        self._rounds_weights = self.form is not None and not settings.master_weights
        self._is_quantized = isinstance(trained, QuantizedStudent)
        self._skips = self.form is not None or (scaling is not None and _scales(scaling))
        self._seen: list[Tensor] = []
        if self.form is not None and settings.master_weights and not self._is_quantized:
            self.module = copy.deepcopy(trained)
            self._masters = MasterWeights(trained.parameters(), self.module.parameters(), self.form)

    @property
    def is_plain(self) -> bool:
        """Tell whether an update is PyTorch's own, with nothing scaled, rounded or counted."""
        return self._scaling is None

    def begin(self) -> None:
        """Make the computing weights what the trained ones are now; no gradients are left."""
        for parameter in self._parameters:
            parameter.grad = None
        # Rollbacks and recycled units change the trained weights between updates.
        if self._masters is not None:
            self._masters.write_back()
        elif self._rounds_weights:
            self._round_weights()

    def forward(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the outputs and values of `inputs`, with a graph."""
        if self._scaling is None:
            found: tuple[Tensor, Tensor] = self.module(inputs)
            return found
        module, self._seen = self.module, []
        assert isinstance(module, Student | QuantizedStudent)
        try:
            module.hidden_hook = self._follow
            if isinstance(module, QuantizedStudent) or self.form is None:
                return module(inputs)
            module.divides_inputs = True
            with RoundedArithmetic(self.form):
                return module(inputs)
        finally:  # without masters it is the student that plays
            module.hidden_hook = None
            if isinstance(module, Student):
                module.divides_inputs = False

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Go back from `gradients` of the loss by `outputs`, float32: scaled first, then rounded.

        Both may be changed in place.
        """
        given = list(gradients)
        if self._scaling is not None and self._scaling.loss_scale.scale != 1.0:
            given = [each * self._scaling.loss_scale.scale for each in given]
        if self.form is not None:
            given = [self.form.round(each) for each in given]
        rounds = self.form is not None and not self._is_quantized
        with RoundedArithmetic(self.form) if rounds else nullcontext():  # type: ignore[arg-type]
            torch.autograd.backward(outputs[: len(given)], given)

    def unscaled(self) -> bool:
        """Leave the trained parameters their gradients, unscaled; False: skip this update."""
        if self._scaling is None:
            return True
        parameters = [each for each in self._parameters if each.requires_grad]
        gradients = [each.grad for each in parameters if each.grad is not None]
        if self._masters is not None:
            gradients = self._masters.take_gradients()
        elif self.form is not None and self._is_quantized:
            for each in gradients:
                each.copy_(self.form.round(each))
        scaling = self._scaling
        if scaling.is_due:
            scaling.count(gradients, self._seen)
        scaling.updates += 1
        if not self._skips:
            return True
        is_finite = unscale(gradients, scaling.loss_scale.scale)
        scaling.loss_scale = scaling.loss_scale.after(is_finite)
        return is_finite

    def end(self) -> None:
        """Round what has been updated, where it computes itself."""
        if self._rounds_weights:
            self._round_weights()

    def _follow(self, hidden: Tensor, unit: Tensor | float) -> None:
        """Round the gradient by `hidden`, where no mode does it, and look at it where it is due."""
        form = self.form if self._is_quantized else None
        is_due = self._scaling is not None and self._scaling.is_due
        if not hidden.requires_grad or (form is None and not is_due):
            return
        value = unit.detach() if isinstance(unit, Tensor) else unit

        def look(gradient: Tensor) -> Tensor | None:
            by_value = gradient / value
            rounded = None if form is None else form.round(by_value)
            if is_due:
                self._seen.append(by_value if rounded is None else rounded)
            return None if rounded is None else rounded * value

        hidden.register_hook(look)

    @torch.no_grad()
    def _round_weights(self) -> None:
        trained = self._trained
        # Ranges and scales stay float32: of few exponents the smallest would round to 0.
        student = trained.student if isinstance(trained, QuantizedStudent) else trained
        assert self.form is not None
        for parameter in student.parameters():
            parameter.copy_(self.form.round(parameter))


def _scales(scaling: GradientScaling) -> bool:
    return scaling.loss_scale.is_dynamic or scaling.loss_scale.scale != 1.0
