"""Passes of linear layers without a graph: the outputs and gradients of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.students import Student
from qpd.students.size_grid import architecture_for
from qpd.training.dense_pass import dense_pass

torch.set_num_threads(1)

FEATURES, ACTIONS, BATCH = 11, 3, 64


def student(size: str) -> Student:
    torch.manual_seed(0)
    found = Student(architecture_for(size, (FEATURES,), ACTIONS), 0)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return found


def through_quantizers(size: str, **config: Any) -> QuantizedStudent:
    module = QuantizedStudent(student(size), QuantizationConfig(**config))
    with torch.no_grad():
        for scale in module.weight_scales.values():
            scale.mul_(0.7)  # some weights lie beyond it
        if module.activation_ranges.requires_grad:
            module.activation_ranges.copy_(1.0 + torch.rand(len(module.activation_ranges)))
    return module


def both_ways(
    module: nn.Module, dtype: torch.dtype, heads: int
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return outputs, values and all gradients, of autograd and of the passes."""
    torch.manual_seed(1)
    observations = 1.4 * torch.rand(BATCH, FEATURES) - 0.2
    given = [torch.randn(BATCH, ACTIONS), torch.randn(BATCH)][:heads]
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        outputs = module(observations)
    torch.autograd.backward(outputs[:heads], [each.clone() for each in given])
    by_autograd = [*map(torch.detach, outputs), *(each.grad for each in module.parameters())]
    for parameter in module.parameters():
        parameter.grad = None
    passes = dense_pass(module, dtype)
    assert passes is not None
    found = passes.forward(observations)
    passes.backward(found, [each.clone() for each in given])
    return by_autograd, [*found, *(each.grad for each in module.parameters())]


@pytest.mark.parametrize("heads", [1, 2], ids=["actor", "actor and critic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ["mlp-16-16", "mlp-64", "mlp-32-32-32"])
def test_float_student_has_the_same_bits(size: str, dtype: torch.dtype, heads: int) -> None:
    for expected, found in zip(*both_ways(student(size), dtype, heads), strict=True):
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            assert expected.dtype == found.dtype
            assert torch.equal(expected, found)


@pytest.mark.parametrize("heads", [1, 2], ids=["actor", "actor and critic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "config",
    [{}, {"per_channel": False}, {"learned_ranges": False}, {"weight_bits": 2}],
    ids=["8 bits", "one scale a layer", "fixed ranges", "2 bits"],
)
def test_quantized_student_has_the_same_bits(
    config: dict[str, Any], dtype: torch.dtype, heads: int
) -> None:
    module = through_quantizers("mlp-32-32", **config)
    names = ["outputs", "values", *(name for name, _ in module.named_parameters())]
    for name, expected, found in zip(names, *both_ways(module, dtype, heads), strict=True):
        assert (expected is None) == (found is None), name
        if expected is not None and found is not None:
            assert expected.shape == found.shape
            assert torch.equal(expected, found), name


def test_others_need_autograd() -> None:
    tanh = Student(architecture_for("mlp-16-16", (FEATURES,), ACTIONS, activation="tanh"), 0)
    literal = QuantizationConfig(scheme="dorefa")
    assert dense_pass(Student(architecture_for("XXS", (4, 84, 84), 4), 0), torch.float32) is None
    assert dense_pass(tanh, torch.float32) is None
    assert dense_pass(QuantizedStudent(tanh, QuantizationConfig()), torch.float32) is None
    assert dense_pass(QuantizedStudent(student("mlp-16-16"), literal), torch.float32) is None
