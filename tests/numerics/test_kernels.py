"""Compiled steps against PyTorch's operations of which each rounds: equal to the bit."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qpd.machine.compiled import compiled
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.kernels import AdamStep, kernels, takes
from qpd.numerics.rounded_arithmetic import RoundedArithmetic
from qpd.teachers.low_precision.hadam import (
    BETA1,
    BETA2,
    adam_moments,
    adam_step,
    hadam_moments,
    hadam_step,
)
from qpd.teachers.low_precision.kahan import kahan_add, kahan_soft_update

COUNT, UPDATES = 1007, 40  # no multiple of a vector's width


def gradients(form: FloatFormat, update: int) -> Tensor:
    """Numbers of the format from its smallest to its largest, and zeros."""
    generator = torch.Generator().manual_seed(update)
    sizes = torch.rand(COUNT, generator=generator) * 2.0 - 1.0
    found = torch.randn(COUNT, generator=generator) * 2.0 ** (form.max_exponent * sizes)
    found[::7] = 0.0
    return form.round(found)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m7", "e4m3", "fp32"])
@pytest.mark.parametrize("is_root", [False, True])
@pytest.mark.parametrize("compensates", [False, True])
def test_adam(name: str, is_root: bool, compensates: bool) -> None:
    form, native = FloatFormat.parse(name), kernels()
    assert native is not None
    moments, step_of = (hadam_moments, hadam_step) if is_root else (adam_moments, adam_step)
    power = 0.5 if is_root else 1.0
    first = form.round(torch.randn(COUNT, generator=torch.Generator().manual_seed(0)))
    values, m, v, lost = first.clone(), *(torch.zeros(COUNT) for _ in range(3))
    own_values, own_m, own_v, own_lost = (each.clone() for each in (values, m, v, lost))
    for update in range(1, UPDATES + 1):
        gradient, scale = gradients(form, update), 1.0 if update % 2 else 128.0
        with RoundedArithmetic(form):
            divided = gradient / scale
            m, v = moments(m, v, divided)
            change = step_of(m, v, 1e-3, 1e-4, update)
            if compensates:
                values, lost = kahan_add(values, lost, change)
            else:
                values = values + change
        step = AdamStep(
            BETA1, 1.0 - BETA1, BETA2**power, (1.0 - BETA2) ** power, 1.0 - BETA1**update,
            (1.0 - BETA2**update) ** power, -1e-3, 1e-4, scale, is_root,
        )  # fmt: skip
        kept = own_lost if compensates else None
        native.adam_(own_values, own_m, own_v, kept, gradient, step, form.bits)
        for own, wanted in ((own_m, m), (own_v, v), (own_lost, lost), (own_values, values)):
            torch.testing.assert_close(own, wanted, rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(values, first)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3"])
def test_soft_update(name: str) -> None:
    form, native = FloatFormat.parse(name), kernels()
    assert native is not None
    generator = torch.Generator().manual_seed(0)
    online, target = form.round(torch.randn(2, COUNT, generator=generator))
    scaled, lost = form.round(8.0 * target), torch.zeros(COUNT)
    own_target, own_scaled, own_lost = target.clone(), scaled.clone(), lost.clone()
    for _ in range(UPDATES):
        with RoundedArithmetic(form):
            scaled, lost = kahan_soft_update(scaled, lost, online, 0.25, 8.0)
            target = scaled / 8.0
        native.soft_update_(own_target, own_scaled, own_lost, online, 0.25, 8.0, form.bits)
        for own, wanted in ((own_target, target), (own_scaled, scaled), (own_lost, lost)):
            assert torch.equal(own, wanted)
    assert (own_lost != 0).any()


def test_float16_tensors_get_the_numbers_of_float32_ones() -> None:
    half, native = FloatFormat.parse("fp16"), kernels()
    assert native is not None
    first = half.round(torch.randn(COUNT, generator=torch.Generator().manual_seed(0)))
    wide = [first, *(torch.zeros(COUNT) for _ in range(5))]
    small = [each.half() for each in wide]
    step = AdamStep(0.9, 0.1, 0.9995, 0.0316, 0.1, 0.0316, -1e-3, 1e-4, 1.0, True)
    for update in range(UPDATES):
        gradient = gradients(half, update)
        gradient[3] = torch.inf if update == UPDATES - 1 else 2.0**-24
        for its, given in ((wide, gradient), (small, gradient.half())):
            value, m, v, lost, scaled, owed = its
            native.adam_(value, m, v, lost, given, step, half.bits)
            native.soft_update_(given.clone(), scaled, owed, value, 0.25, 8.0, half.bits)
        for one, other in zip(wide, small, strict=True):
            assert other.dtype == torch.float16
            torch.testing.assert_close(other.float(), one, rtol=0, atol=0, equal_nan=True)
    assert not wide[0][3].isfinite() and wide[0].isfinite().any()
    subnormal = [each.abs() < half.smallest_normal for each in wide]
    assert sum(int((each & (x != 0)).sum()) for each, x in zip(subnormal, wide, strict=True))


def test_a_format_that_was_used_can_be_copied() -> None:
    form, x = FloatFormat.parse("e5m7"), torch.randn(COUNT)
    wanted = form.round(x)
    for other in (copy.deepcopy(form), pickle.loads(pickle.dumps(form))):
        assert other.bits.address != form.bits.address
        assert torch.equal(other.round(x), wanted)


def test_what_kernels_do_not_take() -> None:
    x = torch.ones(4, 4)
    assert takes(x, x[0])
    assert not any(takes(each) for each in (x.double(), x.half(), x.T[:2], x.to("meta")))
    assert not takes(x.requires_grad_())


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int qpd_nothing;")
    assert compiled(source) is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiled(source) is None


def test_what_does_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(")
    assert compiled(source) is None
