"""Tables of hidden layers: numbers by hand, error bounds, gradients, calibration."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.device.table_error import largest_error
from qpd.quantization.activation_table import (
    ENTRIES,
    error_bound,
    level_grid,
    lookup_table,
)
from qpd.quantization.calibration import best_range, best_table_range, calibrate
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.equalization import equalize
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student, architecture_for
from qpd.students.activations import ACTIVATIONS

torch.set_num_threads(1)
TABLED = [name for name in ACTIVATIONS if name != "relu"]


def simulated(activation: str, **options: object) -> tuple[QuantizedStudent, torch.Tensor]:
    student = Student(architecture_for("mlp-12-10", (4,), 3, activation), seed=1)
    student.scale_outputs(100.0)
    student.set_input_range(-torch.ones(4), torch.ones(4))
    observations = 2 * torch.rand(256, 4, generator=torch.Generator().manual_seed(2)) - 1
    return QuantizedStudent(student, QuantizationConfig(**options)), observations  # type: ignore


def test_the_table_of_tanh_by_hand() -> None:
    # A level is 2 / 255, and 127.5 levels lie below 0. The grid ends 0.49 levels from 1: there
    # 1 - tanh x = 0.0038431, x = ln((2 - 0.0038431) / 0.0038431) / 2 = 3.12635.
    grid = level_grid(ACTIVATIONS["tanh"], torch.tensor(99.0), 255)  # which tanh ignores
    assert float(grid.step) == 2 / 255 and float(grid.zero_point) == 127.5
    assert float(grid.first) == pytest.approx(-3.12635, abs=1e-5)
    assert float(grid.spacing) == pytest.approx(2 * 3.12635 / 1023, abs=1e-8)
    table = lookup_table(ACTIVATIONS["tanh"], grid, 255)
    assert table.shape == (1024,)
    # x = -3.12635 + 0.00611213 i, level 127.5 (tanh x + 1), half up:
    #  i = 511: x = -0.003056, 127.110; i = 512: 127.890; i = 675: x = 0.999338, tanh 0.761316,
    #  224.568; i = 348: the same below 0, 30.432; ends: 0.49 and 254.51.
    wanted = {0: 0, 348: 30, 511: 127, 512: 128, 675: 225, 1023: 255}
    assert {i: int(table[i]) for i in wanted} == wanted
    assert (table + table.flip(0) == 255).all()  # odd, as tanh is
    assert len(table.unique()) == 256


def test_the_table_of_elu_by_hand() -> None:
    # From -1 to 3 in 4 bits: a level is 4 / 15, 0 is level 3.75. exp(x) = 0.49 * 4 / 15 at the
    # first point, x = -2.03511; the last is 3.
    grid = level_grid(ACTIVATIONS["elu"], torch.tensor(3.0), 15)
    assert float(grid.zero_point) == pytest.approx(3.75)
    assert float(grid.first) == pytest.approx(-2.03511, abs=1e-5)
    assert float(grid.first + 1023 * grid.spacing) == pytest.approx(3.0)
    table = lookup_table(ACTIVATIONS["elu"], grid, 15)
    # Entry 413: x = -0.00235, level 3.741; 600: x = 0.91804, 7.193; 200: x = -1.05072,
    # exp(x) - 1 = -0.65032, 1.311.
    assert [int(table[i]) for i in (0, 200, 413, 600, 1023)] == [0, 1, 4, 7, 15]


@settings(max_examples=30)
@given(
    name=st.sampled_from(TABLED),
    bits=st.integers(2, 8),
    calibrated=st.floats(0.05, 40.0, allow_subnormal=False),
)
def test_levels_err_by_no_more_than_the_bound(name: str, bits: int, calibrated: float) -> None:
    error, bound = largest_error(ACTIVATIONS[name], calibrated, 2**bits - 1)
    assert error <= bound * (1 + 1e-9)
    if name in ("tanh", "sigmoid", "hardtanh", "leaky_relu"):
        assert bound < 0.9


@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_gradients_are_those_of_the_function_itself(activation: str) -> None:
    """d level / d bias is f'(x) / step: by the function in float64, at the rounded x."""
    simulation, observations = simulated(activation)
    calibrate(simulation, observations)
    levels = simulation.input_levels(observations[:50])
    found, grid = simulation.looked_up(0, levels, None)
    bias = simulation.student.bias("linear1")
    (gradient,) = torch.autograd.grad(found.sum(), bias)
    with torch.no_grad():
        acc, unit = simulation.accumulators(0, levels, None, grid)
    x = (grid.first.detach() + acc * unit).requires_grad_()
    exact = ACTIVATIONS[activation](x) / grid.step.detach()
    (expected,) = torch.autograd.grad(exact.sum(), x)
    torch.testing.assert_close(gradient.double(), expected.sum(0), rtol=1e-5, atol=1e-5)
    error = (found - (exact + grid.zero_point)).detach().abs().max()
    assert error <= error_bound(ACTIVATIONS[activation], grid)  # and the levels are the table's


def test_ranges_of_unbounded_functions_are_calibrated_and_learned() -> None:
    simulation, observations = simulated("elu")
    assert simulation.activation_ranges.requires_grad
    calibrate(simulation, observations)
    with torch.no_grad():
        exact = [float(x.max()) for x in simulation.student.hidden_activations(observations)]
    for found, largest in zip(simulation.activation_ranges.tolist(), exact, strict=True):
        assert 0.5 * largest < found < 1.1 * largest
    simulation(observations).actor.square().mean().backward()
    assert (simulation.activation_ranges.grad != 0).all()


def test_the_best_range_has_the_least_error() -> None:
    # 2 levels above 0 of 0, 1/2, 1 (softplus begins at 0): 0, 1 and 2 are exact with r = 2 only.
    values = torch.tensor([0.0, 1.0, 2.0] * 10)
    assert best_table_range(ACTIVATIONS["softplus"], values, 2, 100.0) == 2.0
    assert best_table_range(ACTIVATIONS["elu"], torch.tensor([-0.5, 0.0]), 255, 100.0) == 1.0


def test_ranges_of_bounded_functions_stay() -> None:
    simulation, observations = simulated("tanh")
    assert not simulation.activation_ranges.requires_grad
    calibrate(simulation, observations)
    assert simulation.activation_ranges.tolist() == [1.0, 1.0]


def test_only_relu_is_equalized() -> None:
    simulation, observations = simulated("tanh")
    before = {name: value.clone() for name, value in simulation.student.state_dict().items()}
    equalize(simulation.student, observations, 0.75)
    for name, value in simulation.student.state_dict().items():
        assert torch.equal(value, before[name])


def test_eight_bits_of_tanh_are_close_to_the_float_student() -> None:
    simulation, observations = simulated("tanh")
    with torch.no_grad():
        exact, quantized = simulation.student(observations), simulation(observations)
    error = (exact.actor - quantized.actor).square().mean() / exact.actor.var()
    assert 10 * math.log10(error) < -20
    assert (exact.values - quantized.values).abs().max() < 0.1 * exact.values.std() + 0.05
    assert ENTRIES == 1024  # the documented size of files and of C's tables


@pytest.mark.parametrize("first", [0, 1])
def test_calibration_sees_every_unit(first: int) -> None:
    # These are more than are looked at: every second value would be every second unit.
    values = torch.rand(4096, 64, generator=torch.Generator().manual_seed(0))
    values[:, first::2] *= 10.0
    assert best_table_range(ACTIVATIONS["silu"], values, 255, 99.99) > 9.0
    assert best_range(values, 255, 99.99) > 9.0
