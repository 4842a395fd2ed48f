"""The functions of hidden layers: their ranges, their ends, and students that have them."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from qpd.bench.plain_network import PlainNetwork
from qpd.recipe.value_types import ActivationName
from qpd.students import Student, StudentArchitecture, architecture_for
from qpd.students.activations import ACTIVATIONS, activation_of_module
from qpd.teachers.networks.layers import ACTIVATIONS as AGENTS_ACTIVATIONS

torch.set_num_threads(1)


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("high", "error"), [(0.5, 1e-3), (3.0, 0.01), (20.0, 0.1), (0.2, 0.07)])
def test_ranges_slopes_and_ends_are_what_the_table_relies_on(
    name: str, high: float, error: float
) -> None:
    function = ACTIVATIONS[name]
    if name == "relu6":
        high = min(high, 6.0)
    top = doubles(function.high if function.high is not None else high)
    low = function.lowest(top)
    x = torch.linspace(-60.0, 60.0, 600_001, dtype=torch.float64)
    y = function(x)
    if function.low is not None:
        assert y.min() >= low - 1e-9
        assert y.min() < low + 1e-6  # and it is no wider than it has to be
    else:
        assert low == function(-top)
    if function.high is not None:
        assert y.max() <= function.high
    assert (y.diff() / x.diff()).abs().max() <= function.slope + 1e-9
    assert y[300_000:].diff().min() >= 0  # from 0 on they rise: one x has the value `high`
    last = function.right(top, doubles(error))
    assert function(last) >= top - error - 1e-9
    if function.left is not None:
        first = function.left(doubles(error))
        assert first < last
        beyond = y[x <= first] - y[0]
        assert beyond.abs().max() <= error * 1.05


def test_names_are_those_of_recipes_and_of_agents() -> None:
    assert tuple(ACTIVATIONS) == get_args(ActivationName)
    known = {name: activation_of_module(name) for name in AGENTS_ACTIVATIONS}
    assert known["Tanh"] == "tanh" and known["LeakyReLU"] == "leaky_relu"
    x = torch.linspace(-9, 9, 1001)
    for name, activation in known.items():
        if activation is not None:
            expected = AGENTS_ACTIVATIONS[name]()(x)
            torch.testing.assert_close(ACTIVATIONS[activation](x), expected)
    # No range has both ends, or the function never comes near to one.
    without = {name for name, activation in known.items() if activation is None}
    layer_norms = {"LayerNormReLU", "LayerNormTanh"}
    assert without == {"Identity", "LogSigmoid", "Softsign", "Tanhshrink"} | layer_norms


@pytest.mark.parametrize("name", ["tanh", "leaky_relu", "relu"])
def test_a_float_student_is_that_network(name: str) -> None:
    student = Student(architecture_for("mlp-8-6", (3,), 2, name), seed=3)
    student.set_input_range(-torch.ones(3), torch.ones(3))
    x = 2 * torch.rand(20, 3) - 1
    function = {"tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU, "relu": nn.ReLU}[name]()
    hidden = function(student.layer("linear1")((x + 1) / 2))
    hidden = function(student.layer("linear2")(hidden))
    torch.testing.assert_close(student(x).actor, student.actor(hidden))
    torch.testing.assert_close(PlainNetwork(student)(x)[0], student.actor(hidden))


def test_images_have_relu_and_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="students of images have ReLU; remove activation=tanh"):
        architecture_for("XXS", (4, 84, 84), 4, "tanh")
    with pytest.raises(ValueError, match="unknown activation 'cosine': one of relu, tanh"):
        StudentArchitecture((3,), 2, (), (8,), "cosine")


def test_tables_are_shared_where_the_range_is_the_functions_own() -> None:
    counts = {"relu": 0, "tanh": 1, "sigmoid": 1, "elu": 3, "leaky_relu": 3, "relu6": 3}
    for name, count in counts.items():
        assert architecture_for("mlp-8-8-8", (3,), 2, name).num_tables == count
