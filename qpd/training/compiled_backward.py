"""Losses and gradients of a batch of vectors as one compiled function, on a CPU.

A small student's operations take longer to call than to compute. Forward pass, losses and backward
pass are traced as they run, through autograd, and PyTorch's compiler makes a few kernels of them.
Sums in another order change the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qpd.losses.objective import Objective
from qpd.machine.compiled_graph import compiled_graph, pays
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.replay.sample import ReplaySample
from qpd.students import Student
from qpd.training.mixed_precision import MixedPrecision

# Compiling takes 5 seconds, and saves 0.4 ms (phase 1) to 1.3 ms (phase 3) an update.
LEAST_UPDATES = 20_000


def can_compile(module: nn.Module, wanted: str, updates: int) -> bool:
    """Tell whether the steps of `module` are compiled; `wanted` is the recipe's auto, on or off.

    Raises CompileError where that is on, and there is no compiler.
    """
    student = module.student if isinstance(module, QuantizedStudent) else module
    if not isinstance(student, Student) or student.architecture.image_shape is not None:
        return False
    return pays(wanted, updates, LEAST_UPDATES)


class CompiledBackward:
    """`qpd.training.step.backward` for batches of the first one's size."""

    def __init__(self, passes: MixedPrecision, objective: Objective, dtype: torch.dtype) -> None:
        """Compile nothing yet: shapes are the first batch's."""
        self._passes, self._objective, self._dtype = passes, objective, dtype
        self._all = list(passes.module.parameters())
        self._learning: list[nn.Parameter] = []
        self._function: Callable[..., Any] | None = None
        self._size = 0

    def takes(self, sample: ReplaySample) -> bool:
        """Tell whether the sample has the size that is compiled for."""
        return self._size in (0, len(sample.values))

    def __call__(self, sample: ReplaySample) -> Tensor:
        """Set the parameters' gradients; returns total, actor and critic loss, `[3]`.

        Raises CompileError on the first call.
        """
        arguments = (sample.inputs, sample.labels, sample.values)
        if self._function is None:
            self._size = len(sample.values)
            self._function = self._compiled(arguments)
        with torch.no_grad():
            losses, *gradients = self._function(*arguments)
        for parameter, gradient in zip(self._learning, gradients, strict=True):
            parameter.grad = gradient
        found: Tensor = losses
        return found

    def _compiled(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        self._run(*arguments)
        # What learns: not a critic without weight, nor ranges that do not learn.
        self._learning = [each for each in self._all if each.grad is not None]
        self._forget()
        try:
            return compiled_graph(self._run, arguments)
        finally:
            self._forget()

    def _forget(self) -> None:
        for parameter in self._all:
            parameter.grad = None

    def _run(self, inputs: Tensor, labels: Tensor, values: Tensor) -> list[Tensor]:
        """Return the losses `[3]` and the gradients; the parameters are found, not given."""
        sample = ReplaySample(inputs, labels, values, values, values, values)
        with torch.autocast("cpu", self._dtype, enabled=self._dtype != torch.float32):
            outputs = self._passes.forward(inputs)
        (actors, by_outputs), (critics, by_values) = self._objective.gradients(outputs, sample)
        actor, critic = actors.mean(), critics.mean()
        slopes = self._objective.slope_tensors(actor, critic)
        given = [
            gradient * (slope / len(values))
            for gradient, slope in zip((by_outputs, by_values), slopes, strict=False)
        ]
        self._passes.backward(outputs, given)
        total = actor if len(slopes) == 1 else actor + critic
        gradients = [each.grad for each in self._learning if each.grad is not None]
        return [torch.stack([total, actor, critic]), *gradients]
