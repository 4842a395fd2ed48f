"""Formats eXmY against PyTorch's and NumPy's casts, and against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.kernels import kernels

BITS16 = torch.arange(-(2**15), 2**15).to(torch.int16)
CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16, "e5m2": torch.float8_e5m2}
formats = st.builds(FloatFormat, st.integers(2, 8), st.integers(1, 23), st.booleans())


@pytest.fixture(params=["compiled", "PyTorch's operations"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Round by the compiled kernel, and again as where there is no compiler."""
    if request.param == "compiled":
        assert kernels() is not None, "the tests need a C compiler"
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qpd.numerics.float_format.kernels", lambda: None)
        yield


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    """Equal to the bit, signs of zeros included; any NaN is as good as another."""
    integer = torch.int32 if found.dtype == torch.float32 else torch.int64
    assert found.dtype == wanted.dtype
    equal = found.view(integer) == wanted.view(integer)
    return bool((equal | (found.isnan() & wanted.isnan())).all())


def by_addition(name: str, x: Tensor) -> Tensor:
    """Round without PyTorch's casts, which `round` takes for fp16 and bf16 in float32."""
    return FloatFormat.parse(name)._round(x.double()).to(x.dtype)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_every_16_bit_number_is_its_own_rounding(name: str) -> None:
    values = BITS16.view(CASTS[name]).float()
    assert len(values) == 65_536
    assert same_bits(FloatFormat.parse(name).round(values), values)
    assert same_bits(by_addition(name, values), values)


@pytest.mark.parametrize("name", ["bf16", "e5m2"])
def test_every_float16_rounds_as_casts_do(name: str) -> None:
    values = BITS16.view(torch.float16).float()
    assert same_bits(FloatFormat.parse(name).round(values), values.to(CASTS[name]).float())


@pytest.mark.parametrize("name", list(CASTS))
def test_midpoints_and_their_neighbours_round_as_casts_do(name: str) -> None:
    dtype = CASTS[name]
    values = BITS16.to(torch.int8).unique().view(dtype) if name == "e5m2" else BITS16.view(dtype)
    ordered = values.float()[values.float().isfinite()].unique()
    # The end of the line, halfway to the number that an exponent more would give.
    step = ordered[-1] - ordered[-2]
    end = ordered[-1].double() + step.double() / 2
    middle = (ordered[1:].double() + ordered[:-1].double()) / 2
    middle = torch.cat([middle, end[None], -end[None]]).float()
    above = torch.nextafter(middle, torch.tensor(math.inf))
    below = torch.nextafter(middle, torch.tensor(-math.inf))
    for points in (middle, above, below):
        assert same_bits(FloatFormat.parse(name).round(points), points.to(dtype).float())
        assert same_bits(by_addition(name, points), points.to(dtype).float())


@pytest.mark.parametrize("name", list(CASTS))
def test_random_bit_patterns_round_as_casts_do(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (10_000_000,), generator=generator).to(torch.int32)
    x = bits.view(torch.float32)
    assert same_bits(FloatFormat.parse(name).round(x), x.to(CASTS[name]).float())
    some = x[:1_000_000]
    assert same_bits(by_addition(name, some), some.to(CASTS[name]).float())


@pytest.mark.parametrize("name", ["e8m1", "e8m5", "e8m22", "fp32", "e2m1", "e7m10", "e5m21"])
@pytest.mark.parametrize("saturate", [False, True])
def test_float32_is_rounded_as_float64_is(name: str, saturate: bool) -> None:
    """By bits or by float32's addition; float64 holds every addend."""
    form = FloatFormat.parse(name, saturate=saturate)
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=generator).to(torch.int32)
    ends = torch.tensor([-1, 2**31 - 1, 0, -(2**31), 0x7F800000, 0x7F7FFFFF, 1], dtype=torch.int32)
    for x in (torch.cat([bits, ends]).view(torch.float32), torch.linspace(-3, 3, 999)):
        assert same_bits(form.round(x), form.round(x.double()).float())


def test_float64_is_rounded_once() -> None:
    # 1 + 2^-11 is halfway between 1 and 1 + 2^-10. A little more must go up; by way of float32,
    # which drops the 2^-40, it would be a tie and go down to the even 1.
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    assert x.half().item() == 1.0
    assert FloatFormat.parse("fp16").round(x).item() == 1 + 2.0**-10
    generator = np.random.default_rng(0)
    many = generator.standard_normal(300_000) * 2.0 ** generator.integers(-30, 20, 300_000)
    with np.errstate(over="ignore"):
        wanted = torch.from_numpy(many.astype(np.float16).astype(np.float64))
    assert same_bits(FloatFormat.parse("fp16").round(torch.from_numpy(many)), wanted)


def test_a_small_format_by_hand() -> None:
    # e2m1, bias 1: 0, 0.5 (subnormal), 1, 1.5, 2, 3; 4 and more do not fit.
    x = torch.tensor([0.25, 0.2500001, 0.75, 1.25, 1.75, 2.5, 2.6, 3.49, 3.5, -0.1, -9.0])
    rounded = FloatFormat(2, 1).round(x).tolist()
    assert rounded == [0, 0.5, 1, 1, 2, 2, 3, 3, math.inf, 0, -math.inf]
    assert math.copysign(1, rounded[-2]) == -1
    special = torch.tensor([math.inf, -4.0, math.nan])
    saturated = FloatFormat(2, 1, saturate=True).round(special)
    assert saturated[:2].tolist() == [3, -3]
    assert saturated[2].isnan()


@given(formats, st.lists(st.floats(width=32), min_size=1, max_size=32))
def test_no_number_of_the_format_is_nearer(form: FloatFormat, numbers: list[float]) -> None:
    x = torch.tensor(numbers)
    y = form.round(x)
    assert same_bits(form.round(y), y)
    assert same_bits(form.round(-x), -y)
    for a, b in zip(x.double().tolist(), y.double().tolist(), strict=True):
        if math.isfinite(a) and math.isfinite(b) and abs(a) <= form.largest:
            exponent = math.frexp(a)[1] - 1 if a else form.min_exponent
            step = math.ldexp(1.0, max(exponent, form.min_exponent) - form.mantissa)
            assert abs(a - b) <= step / 2
            assert (b / step).is_integer()
        elif math.isfinite(a) and abs(a) <= form.largest:
            raise AssertionError(f"{a} fits, but was lost")


@given(st.integers(2, 8), st.integers(1, 23))
def test_the_ends_of_a_format(exponent: int, mantissa: int) -> None:
    form = FloatFormat(exponent, mantissa)
    ends = torch.tensor([form.largest, form.smallest_normal, form.smallest])
    assert form.round(ends).equal(ends)
    if exponent < 8:  # halves of the last subnormal of e8 are beyond float32
        assert form.round(ends[2] / 2).item() == 0
        assert form.round(ends[2] * 0.75).item() == form.smallest
        assert form.round(ends[0] * 2).item() == math.inf
    assert FloatFormat.parse(str(form)) == form


def test_names_and_limits() -> None:
    half = FloatFormat.parse("fp16")
    assert half == FloatFormat.parse("e5m10")
    assert (half.largest, half.smallest_normal, half.smallest) == (65504, 2**-14, 2**-24)
    assert str(FloatFormat(8, 7)) == "bf16"
    assert str(FloatFormat(4, 3)) == "e4m3"
    assert FloatFormat.parse("e4m3").largest == 240


@pytest.mark.parametrize("text", ["fp8", "e9m3", "e5m0", "e5m24", "E5M2", "e5", "", "e5m2 "])
def test_what_is_no_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="format"):
        FloatFormat.parse(text)


def test_only_wide_dtypes_are_rounded() -> None:
    with pytest.raises(ValueError, match="float16"):
        FloatFormat(5, 2).round(torch.ones(1, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_in_place_writes_what_round_returns(dtype: torch.dtype) -> None:
    form = FloatFormat.parse("e4m3")
    whole = torch.randn(8, 10, dtype=dtype)
    for part in (whole.clone(), whole.clone().T, whole.clone()[:, ::2], whole.clone()[0, 0]):
        wanted, place = form.round(part), part.data_ptr()
        found = form.round_(part)
        assert same_bits(part, wanted) and found.data_ptr() == place


def test_rounding_keeps_the_graph() -> None:
    x = torch.tensor([1.0 + 2.0**-12], requires_grad=True)
    rounded = FloatFormat.parse("fp16").round(x)
    rounded.backward()
    assert rounded.item() == 1.0 and x.grad is not None and x.grad.item() == 1.0
