"""Quantizers of integer controllers answer as Brevitas' do: values, gradients, learned scales."""

import json
import math
from pathlib import Path

import pytest
import torch

from qpd.quantization.controller_layer import WARM_UP, LearnedScale
from qpd.quantization.integer_grid import (
    quantize,
    quantize_weights,
    signed_grid,
    unsigned_grid,
    weight_grid,
)

_STORED = json.loads(Path(__file__).with_name("brevitas_vectors.json").read_text())
_CASES = {f"{case['kind']}-{case['bits']}": case for case in _STORED["cases"]}


@pytest.mark.parametrize("name", _CASES)
def test_values_and_gradients(name):
    case = _CASES[name]
    kind, bits = case["kind"], case["bits"]
    x = torch.tensor(case["x"], requires_grad=True)
    if kind in ("signed", "unsigned"):
        scale = torch.tensor(_STORED["scale"], requires_grad=True)
        grid = signed_grid(bits) if kind == "signed" else unsigned_grid(bits)
        found = quantize(x, scale, grid)
    else:
        scale = None
        found = quantize_weights(x, weight_grid(kind, bits))
    (found * torch.tensor(case["upstream"])).sum().backward()
    torch.testing.assert_close(found.detach(), torch.tensor(case["values"]))
    torch.testing.assert_close(x.grad, torch.tensor(case["by_x"]))
    if scale is not None:
        assert scale.grad.item() == pytest.approx(case["by_scale"], rel=1e-4, abs=1e-5)


def test_the_scale_that_batches_ask_for():
    wanted = dict(zip(_STORED["learned"]["batches"], _STORED["learned"]["scales"], strict=True))
    learned = LearnedScale(signed_grid(8), torch.tensor(1.0, requires_grad=True))
    for number in range(WARM_UP + 1):
        values = [math.sin(8 * number + each) * (1 + number / 300) for each in range(8)]
        learned.quantized(torch.tensor(values))
        if number in wanted:
            assert learned.value.item() == pytest.approx(wanted[number], rel=1e-5)
    assert learned.calls == WARM_UP
