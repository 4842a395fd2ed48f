"""Ranges and scales move by shares of their size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import FinetuneSettings
from qpd.students import Student, architecture_for
from qpd.training.optimizer import QUANTIZER_FACTOR, make_optimizer
from qpd.training.relative_steps import RelativeSteps


def test_a_step_by_hand() -> None:
    """SGD, at a rate of 0.1: x becomes x exp(-0.1 x dx); an ordinary one 1 - 0.1 * 3."""
    ranges = nn.Parameter(torch.tensor([2.0, 0.5]))
    plain = nn.Parameter(torch.tensor([1.0]))
    groups = [{"params": [ranges], "is_relative": True}, {"params": [plain]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    ranges.grad, plain.grad = torch.tensor([3.0, -4.0]), torch.tensor([3.0])
    RelativeSteps(optimizer).step()
    expected = [2.0 * math.exp(-0.1 * 3.0 * 2.0), 0.5 * math.exp(0.1 * 4.0 * 0.5)]
    assert ranges.tolist() == pytest.approx(expected, rel=1e-6)
    assert plain.tolist() == pytest.approx([0.7])


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_whatever_the_size_the_share_is_the_same(name: str) -> None:
    """Of two students with the same gradients by logarithms, one with ranges a thousandfold."""
    shares = []
    for size in (1.0, 1000.0):
        simulation = QuantizedStudent(
            Student(architecture_for("mlp-8-8", (3,), 2)), QuantizationConfig()
        )
        with torch.no_grad():
            simulation.activation_ranges.fill_(2.0 * size)
        optimizer = make_optimizer(simulation, FinetuneSettings(optimizer=name, lr=1e-2))
        for group in optimizer.param_groups:
            group["lr"] *= group["lr_factor"]
        steps = RelativeSteps(optimizer)
        for number in range(3):
            for parameter in simulation.parameters():
                parameter.grad = torch.zeros_like(parameter)
            by_log = torch.tensor([1.0, -2.0]) * (1 + number)
            simulation.activation_ranges.grad = by_log / simulation.activation_ranges.detach()
            steps.step()
        shares.append(simulation.activation_ranges.detach() / size)
    torch.testing.assert_close(*shares)
    assert shares[0][0] < 2.0 < shares[0][1]


def test_adams_first_step_is_the_rate() -> None:
    simulation = QuantizedStudent(Student(architecture_for("mlp-8", (3,), 2)), QuantizationConfig())
    with torch.no_grad():
        simulation.activation_ranges.fill_(30.0)
    optimizer = make_optimizer(simulation, FinetuneSettings(lr=1e-3))
    for group in optimizer.param_groups:
        group["lr"] *= group["lr_factor"]
    for parameter in simulation.parameters():
        parameter.grad = torch.zeros_like(parameter)
    simulation.activation_ranges.grad = torch.tensor([5.0])
    RelativeSteps(optimizer).step()
    found = simulation.activation_ranges.item()
    assert found == pytest.approx(30.0 * math.exp(-1e-3 * QUANTIZER_FACTOR), rel=1e-5)


def test_two_optimizers_of_one_network_take_turns() -> None:
    """Each makes its parameters views of a tensor of its own, and sees where they are now."""
    ranges = nn.ParameterList(
        [nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))]
    )
    steps = [
        RelativeSteps(torch.optim.SGD([{"params": list(ranges), "is_relative": True}], lr=0.1))
        for _ in range(2)
    ]
    for turn in range(4):
        before = [each.item() for each in ranges]
        ranges[0].grad, ranges[1].grad = torch.tensor([1.0]), None
        steps[turn % 2].step()
        assert ranges[0].item() == pytest.approx(before[0] * math.exp(-0.1 * before[0]))
        assert ranges[1].item() == before[1]
