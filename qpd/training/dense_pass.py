"""Forward and backward pass of a student of linear layers with ReLU, without autograd's graph.

Such a student is small: to build a graph of some thirty operations and to walk it back costs
several times their arithmetic. Operations and their order are those that autograd takes, so that
losses and gradients are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.quantization.dorefa import ScaledIntegers
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.quantization.straight_through import QuantizeActivations
from qpd.students import Student
from qpd.students.heads import Heads
from qpd.students.student import INPUT_LEVELS


def dense_pass(module: nn.Module, dtype: torch.dtype) -> FloatPass | QuantizedPass | None:
    """Return the passes of `module` with products in `dtype`; None where it needs autograd."""
    if isinstance(module, Student) and _is_dense(module):
        return FloatPass(module, dtype)
    if isinstance(module, QuantizedStudent) and _is_dense(module.student):
        if module.config.scheme == "dorefa_scaled" and not module.has_tables:
            return QuantizedPass(module, dtype)
    return None


def _is_dense(student: Student) -> bool:
    is_relu = student.architecture.activation == "relu"
    return is_relu and all(shape.kind == "linear" for shape in student.shapes)


class _Call:
    """A call of an autograd Function, its context in the place of autograd's."""

    def __init__(
        self, function: type[torch.autograd.Function], *arguments: Any, needs: bool = True
    ) -> None:
        self.saved_tensors: tuple[Tensor, ...] = ()
        self.needs_input_grad = (True, needs)
        self._function: Any = function
        self.result: Any = self._function.forward(self, *arguments)

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep `tensors`, as autograd's context does."""
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients that are None are given as None."""

    def gradients(self, *given: Tensor | None) -> tuple[Any, ...]:
        """Return the gradients by the arguments."""
        found: tuple[Any, ...] = self._function.backward(self, *given)
        return found


class FloatPass:
    """The passes of a float student."""

    def __init__(self, student: Student, dtype: torch.dtype) -> None:
        self._student, self._dtype = student, dtype
        self._layers = [student.layer(shape.name) for shape in student.shapes[:-1]]
        self._hidden: list[Tensor] = []
        self._weights: list[Tensor] = []

    @torch.no_grad()
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs `[batch, num_outputs]` and values `[batch]`, float32."""
        student, dtype = self._student, self._dtype
        hidden = student.encode(observations).to(dtype)
        self._hidden, self._weights = [hidden], []
        for position, layer in enumerate(self._layers):
            weight = layer.weight / INPUT_LEVELS if position == 0 else layer.weight
            self._weights.append(weight.to(dtype))
            assert layer.bias is not None
            hidden = F.linear(hidden, self._weights[-1], layer.bias.to(dtype)).relu_()
            self._hidden.append(hidden)
        actor, critic = student.actor, student.critic
        self._heads = _Call(Heads, hidden, actor.weight, actor.bias, critic.weight, critic.bias)
        outputs: tuple[Tensor, Tensor] = self._heads.result
        return outputs

    @torch.no_grad()
    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Set the parameters' gradients, given the loss's by outputs and, or not, by values."""
        by_values = gradients[1] if len(gradients) > 1 else None
        gradient, *heads = self._heads.gradients(gradients[0], by_values)
        student = self._student
        student.actor.weight.grad, student.actor.bias.grad = heads[:2]
        student.critic.weight.grad, student.critic.bias.grad = heads[2:]
        for position in reversed(range(len(self._layers))):
            layer, hidden = self._layers[position], self._hidden
            gradient = torch.ops.aten.threshold_backward(gradient, hidden[position + 1], 0)
            weight = (gradient.t() @ hidden[position]).float()
            layer.weight.grad = weight.div_(INPUT_LEVELS) if position == 0 else weight
            assert layer.bias is not None
            layer.bias.grad = gradient.sum(0).float()
            if position:
                gradient = gradient @ self._weights[position]


class _Layer:
    """One quantized layer's constants at its accumulators, and the way back through them.

    `unit`, float32 `[out]`, is the value of 1 in an accumulator: scale times the inputs' step.
    """

    def __init__(
        self, module: QuantizedStudent, position: int, step: Tensor | float, dtype: torch.dtype
    ) -> None:
        shape, bits = module.student.shapes[position], module.bits[position]
        self.layer = module.student.layer(shape.name)
        self.parameter = module.weight_scales[shape.name]
        self._learns = self.parameter.requires_grad
        self._top = 2**bits - 1
        whole = self.parameter.expand(len(self.layer.weight))
        self._integers = _Call(
            ScaledIntegers, self.layer.weight, whole, bits, dtype, needs=self._learns
        )
        self.integers: Tensor = self._integers.result
        self._scale, self._step = whole / self._top, step
        self.unit = self._scale * step
        assert self.layer.bias is not None
        self._ratio = self.layer.bias / self.unit
        self.bias = self._ratio.round()

    def back(
        self, by_integers: Tensor, by_bias: Tensor, by_unit: Tensor | None, *, once: bool = False
    ) -> list[Tensor]:
        """Set the gradients of weight, bias and scale; return those by the inputs' step.

        `by_bias`, `[out]`, is by the rounded bias; `by_unit`, `[out]`, by `unit` but for the
        bias's, which autograd adds to it where the unit is computed `once`.
        """
        self.layer.weight.grad, of_scale, *_ = self._integers.gradients(by_integers)
        assert self.layer.bias is not None
        self.layer.bias.grad = by_bias / self.unit
        if by_unit is None:  # nothing that it is made of learns
            return []
        of_bias = -by_bias * (self._ratio / self.unit)
        parts = [by_unit + of_bias] if once else [of_bias, by_unit]
        if self._learns:
            by_scale = _added([part * self._step for part in parts])
            whole = of_scale + by_scale / self._top
            self.parameter.grad = whole if len(self.parameter) > 1 else whole.sum(0, keepdim=True)
        return [(part * self._scale).sum() for part in parts]


def _added(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of one tensor or two."""
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


class QuantizedPass:
    """The passes of a student in phase 3, through its quantizers."""

    def __init__(self, module: QuantizedStudent, dtype: torch.dtype) -> None:
        self._module, self._dtype = module, dtype
        self._ranges = module.activation_ranges
        self._learns = self._ranges.requires_grad

    @torch.no_grad()
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs `[batch, num_outputs]` and values `[batch]`, float32."""
        module, dtype = self._module, self._dtype
        top = module.config.activation_levels
        self._steps = self._ranges / top
        step: Tensor | float = 1.0 / module.config.input_levels
        levels = module.input_levels(observations).to(dtype)
        self._levels, self._layers = [levels], list[_Layer]()
        self._calls, self._gains = list[_Call](), list[Tensor]()
        for position in range(len(module.student.shapes) - 1):
            layer = _Layer(module, position, step, dtype)
            step = self._steps[position]
            gain = layer.unit / step
            arguments = (F.linear(levels, layer.integers), gain, layer.bias * gain, float(top))
            call = _Call(QuantizeActivations, *arguments, needs=self._learns)
            levels = call.result
            self._layers.append(layer)
            self._levels.append(levels)
            self._calls.append(call)
            self._gains.append(gain)
        # The head is exact in float32: its accumulators are the outputs; rounded logits tie.
        head = _Layer(module, len(module.student.shapes) - 1, step, torch.float32)
        self._layers.append(head)
        levels = self._levels[-1] = levels.float()
        self._sums = F.linear(levels, head.integers) + head.bias
        self._features = levels * step
        critic = module.student.critic
        values = F.linear(self._features, critic.weight, critic.bias)
        return self._sums * head.unit, values.squeeze(-1)

    @torch.no_grad()
    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Set the parameters' gradients, given the loss's by outputs and, or not, by values."""
        head, levels, critic = self._layers[-1], self._levels[-1], self._module.student.critic
        step = self._steps[-1]
        by_sums = gradients[0] * head.unit
        by_unit = (gradients[0] * self._sums).sum(0) if self._learns else None
        by_steps = head.back(by_sums.t() @ levels, by_sums.sum(0), by_unit, once=True)
        gradient = by_sums @ head.integers
        if len(gradients) > 1:
            by_values = gradients[1].unsqueeze(-1)
            critic.weight.grad = by_values.t() @ self._features
            critic.bias.grad = by_values.sum(0)
            by_features = by_values @ critic.weight
            gradient = gradient + by_features * step
            by_steps.insert(0, (by_features * levels).sum())
        if self._learns:
            self._ranges.grad = torch.zeros_like(self._ranges)
        for position in reversed(range(len(self._calls))):
            by_steps = self._hidden_back(position, gradient.to(self._dtype), by_steps)
            gradient = self._by_levels

    def _hidden_back(
        self, position: int, gradient: Tensor, by_steps: Sequence[Tensor]
    ) -> list[Tensor]:
        """Go back through a hidden layer; returns the gradients by its inputs' step.

        `by_steps` are those by its own step in the layer after it.
        """
        layer, gain, step = self._layers[position], self._gains[position], self._steps[position]
        by_sums, by_gain, by_offset, _ = self._calls[position].gradients(gradient)
        by_unit = None
        if self._learns:
            by_gain = by_gain + by_offset * layer.bias
            by_unit = by_gain / step
            own = (-by_gain * (gain / step)).sum()
            top, is_last = self._module.config.activation_levels, position == len(self._calls) - 1
            after = _added(by_steps)
            assert self._ranges.grad is not None
            # The head computes its inputs' step anew, so that autograd divides twice.
            total = after / top + own / top if is_last else (after + own) / top
            self._ranges.grad[position] = total
        self._by_levels = by_sums @ layer.integers if position else by_sums
        by_integers = by_sums.t() @ self._levels[position]
        return layer.back(by_integers, by_offset * gain, by_unit)
