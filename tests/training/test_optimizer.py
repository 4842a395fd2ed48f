"""The optimizer: what learns at the head's rate, and PyTorch's Adam with less around it."""

from __future__ import annotations

import copy

import pytest
import torch

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings
from qpd.students import Student, architecture_for
from qpd.training.optimizer import QUANTIZER_FACTOR, make_optimizer


def test_the_heads_scale_learns_as_all_scales_do() -> None:
    simulation = QuantizedStudent(Student(architecture_for("mlp-8", (3,), 2)), QuantizationConfig())
    names = {id(parameter): name for name, parameter in simulation.named_parameters()}
    optimizer = make_optimizer(simulation, FinetuneSettings(), head_factor=9.0)
    groups = {
        group["name"]: ({names[id(p)] for p in group["params"]}, group["lr_factor"])
        for group in optimizer.param_groups
    }
    assert groups["head"] == ({"student.actor.weight", "student.actor.bias"}, 9.0)
    scales = {"activation_ranges", "weight_scales.linear1", "weight_scales.actor"}
    assert groups["quantizers"] == (scales, QUANTIZER_FACTOR)
    relative = [group["name"] for group in optimizer.param_groups if group.get("is_relative")]
    assert relative == ["quantizers"]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_pytorchs_to_the_bit(weight_decay: float) -> None:
    """Also where a head gets its first gradient later, and after the state was loaded."""
    settings = DistillSettings(weight_decay=weight_decay)
    student = Student(architecture_for("mlp-8-8", (5,), 2), 0)
    other = copy.deepcopy(student)
    optimizer = make_optimizer(student, settings, 3.0)
    plain = make_optimizer(other, settings, 3.0)
    rng = torch.Generator().manual_seed(0)
    for step in range(6):
        for group in (*optimizer.param_groups, *plain.param_groups):
            group["lr"] = 1e-2 / (1 + step)
        for (name, one), two in zip(student.named_parameters(), other.parameters(), strict=True):
            one.grad = two.grad = None
            if step > 1 or not name.startswith("critic"):
                one.grad = torch.randn(one.shape, generator=rng)
                two.grad = one.grad.clone()
        if step == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.step()
        torch.optim.Adam.step(plain)
        for one, two in zip(student.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)
