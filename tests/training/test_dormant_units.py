"""Recycling of dormant units: the function stays, the units live again."""

from __future__ import annotations

import torch

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.dorefa import least_squares_scale
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, architecture_for
from qpd.training.dormant_units import dormant_units, recycle_dormant_units

torch.set_num_threads(1)


def varied_frames() -> torch.Tensor:
    """Black frames with one random bright square each, uint8 `[128, 4, 84, 84]`."""
    frames = torch.zeros(128, 4, 84, 84, dtype=torch.uint8)
    for index, (x, y, size, level) in enumerate(
        torch.randint(0, 40, (128, 4), generator=torch.Generator().manual_seed(0)).tolist()
    ):
        frames[index, :, y : y + size + 4, x : x + size + 4] = 100 + 3 * level
    return frames


FRAMES = varied_frames()


def student_with_dead_units() -> tuple[Student, torch.optim.Adam]:
    """Two dead channels, three dead units of the linear layer, and an optimizer that moved once."""
    student = Student(architecture_for("XXS", (4, 84, 84), 4), seed=1)
    optimizer = torch.optim.Adam(student.parameters())
    student.scale_outputs(100.0)
    student(FRAMES).actor.square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        student.bias("conv2")[[3, 5]] = -1e4
        student.bias("linear1")[[0, 7, 31]] = -1e4
    return student, optimizer


def dormant(student: Student) -> list[int]:
    """Units of each layer that no frame activates."""
    return [
        int((hidden.transpose(0, 1).flatten(1).amax(1) <= 0).sum())
        for hidden in student.hidden_activations(FRAMES)
    ]


def test_dormant_units_live_again_and_the_function_stays() -> None:
    student, optimizer = student_with_dead_units()
    before = student(FRAMES)
    dead = dormant(student)
    assert dead[1] >= 2 and dead[3] >= 3
    found = recycle_dormant_units(student, optimizer, student.hidden_activations(FRAMES), seed=0)
    after = student(FRAMES)
    assert sum(int(units.sum()) for units in found.values()) == sum(dead)
    torch.testing.assert_close(after.actor, before.actor, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.values, before.values, rtol=1e-4, atol=1e-4)
    assert sum(dormant(student)) <= 1  # a fresh unit may be dormant by chance


def test_recycled_units_learn_and_the_others_keep_their_moments() -> None:
    student, optimizer = student_with_dead_units()
    weight = student.layer("linear1").weight
    moments = {name: optimizer.state[weight][name].clone() for name in ("exp_avg", "exp_avg_sq")}
    recycle_dormant_units(student, optimizer, student.hidden_activations(FRAMES), seed=0)
    state = optimizer.state[weight]
    alive = [unit for unit in range(32) if unit not in (0, 7, 31)]
    assert state["exp_avg"][[0, 7, 31]].abs().max() == 0
    assert state["exp_avg_sq"][[0, 7, 31]].min() > 0  # no first step of full length
    for name, moment in moments.items():
        assert torch.equal(state[name][alive], moment[alive])
    optimizer.zero_grad()
    student(FRAMES).values.sum().backward()
    assert student.critic.weight.grad is not None
    assert (student.critic.weight.grad[0, [0, 7, 31]].abs() > 0).sum() >= 2


def test_nothing_happens_where_every_unit_lives() -> None:
    student = Student(architecture_for("XXS", (4, 84, 84), 4), seed=1)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    assert sum(dormant(student)) == 0
    hidden = student.hidden_activations(FRAMES)
    assert recycle_dormant_units(student, optimizer, hidden, seed=0) == {}
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())


def test_dead_quantized_units_live_again_with_scales_of_their_own() -> None:
    student, optimizer = student_with_dead_units()
    simulation = QuantizedStudent(student, QuantizationConfig(4, 4))
    before = simulation.weight_scales["linear1"].detach().clone()
    hidden = simulation.hidden_activations(FRAMES)
    found = recycle_dormant_units(student, optimizer, hidden, seed=0)
    assert found["linear1"].nonzero().flatten().tolist() == [0, 7, 31]
    for layer, units in found.items():
        simulation.refit_scales(layer, units)
    scales = simulation.weight_scales["linear1"]
    fitted = least_squares_scale(student.layer("linear1").weight, 4, True)
    torch.testing.assert_close(scales[[0, 7, 31]], fitted[[0, 7, 31]])
    kept = [unit for unit in range(32) if unit not in (0, 7, 31)]
    assert torch.equal(scales[kept], before[kept])
    again = [dormant_units(hidden) for hidden in simulation.hidden_activations(FRAMES)]
    assert sum(int(units.sum()) for units in again) <= 2  # a fresh unit may be dormant by chance
