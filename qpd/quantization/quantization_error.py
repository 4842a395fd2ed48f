"""The distance of the quantized student from its own fp32 parameters, while it trains."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActingRule, ActionSpace
from qpd.quantization.quantized_student import QuantizedStudent


def sqnr_db(exact: Tensor, quantized: Tensor) -> float:
    """Return signal to quantization noise in decibels, `10 log10(sum x^2 / sum (x - q)^2)`.

    Two tensors of one shape. Infinite where they are equal, minus infinity where `exact` is 0 and
    `quantized` is not.
    """
    assert exact.shape == quantized.shape
    # float64: the noise is a small difference, and its square in float32 loses digits.
    signal = float(exact.double().square().sum())
    noise = float((exact.double() - quantized.double()).square().sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


@torch.no_grad()
def dequantized_weight(simulation: QuantizedStudent, position: int) -> Tensor:
    """Return layer `position`'s quantized weights as real numbers, in the shape of its weight."""
    integers, unit = simulation.integer_weight(position)
    return integers * unit.view(-1, *[1] * (integers.dim() - 1))


@torch.no_grad()
def quantization_errors(
    simulation: QuantizedStudent, observations: Tensor, actions: ActionSpace
) -> dict[str, float]:
    """Return the SQNR in dB of each layer's weights and the outputs, and the share of same actions.

    `observations`, `[batch, ...]`, are what the outputs are computed on, less what no action
    depends on, such as the mean of logits. The reference is what the same parameters give without
    quantizers. Under the scheme dorefa, which drops each layer's scale, that is another function,
    and the numbers say so. What is infinite is left out.
    """
    student = simulation.student
    errors = {
        f"sqnr_db/{shape.name}": sqnr_db(
            student.layer(shape.name).weight, dequantized_weight(simulation, position)
        )
        for position, shape in enumerate(student.shapes)
    }
    # The same parameters twice: what differs is the quantizers' doing, not the training's.
    exact, quantized = student(observations).actor, simulation(observations).actor
    errors["sqnr_db/outputs"] = sqnr_db(actions.centred(exact), actions.centred(quantized))
    greedy, rng = ActingRule("greedy"), np.random.default_rng(0)
    taken = (actions.act(each.cpu().numpy(), greedy, rng) for each in (exact, quantized))
    errors["same_action"] = float(actions.same(*taken).mean())
    return {name: value for name, value in errors.items() if math.isfinite(value)}
