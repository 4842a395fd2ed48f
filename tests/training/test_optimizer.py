"""The optimizer's groups: what learns at the head's rate."""

from __future__ import annotations

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import FinetuneSettings
from qpd.students import Student, architecture_for
from qpd.training.optimizer import make_optimizer


def test_the_heads_scale_learns_at_the_rate_of_scales() -> None:
    """At the head's larger one it ran away from the weights, which then saturated."""
    simulation = QuantizedStudent(Student(architecture_for("mlp-8", (3,), 2)), QuantizationConfig())
    names = {id(parameter): name for name, parameter in simulation.named_parameters()}
    optimizer = make_optimizer(simulation, FinetuneSettings(), head_factor=9.0)
    groups = {
        group["name"]: ({names[id(p)] for p in group["params"]}, group["lr_factor"])
        for group in optimizer.param_groups
    }
    assert groups["head"] == ({"student.actor.weight", "student.actor.bias"}, 9.0)
    scales = {"activation_ranges", "weight_scales.linear1", "weight_scales.actor"}
    assert groups["quantizers"] == (scales, 1.0)
