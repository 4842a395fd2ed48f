"""Kahan-gradients and Kahan-momentum: updates that fp16 drops, by hand, add up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qpd.teachers.low_precision.kahan import (
    fitting_scale,
    kahan_add,
    kahan_soft_update,
    naive_soft_update,
)


def half(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float16)


def test_a_thousand_steps_of_a_ten_thousandth() -> None:
    # In [1/4, 1/2) fp16's step is 2^-12: half of it, 1.22e-4, is more than 1e-4.
    naive = total = half(0.3)
    lost = half(0.0)
    for _ in range(1000):
        naive = naive + half(-1e-4)
        total, lost = kahan_add(total, lost, half(-1e-4))
    assert naive.equal(half(0.3))
    # 0.3 - 1000 * 1.00017e-4 (1e-4 rounded to fp16) = 0.2.
    assert total.item() == pytest.approx(0.2, rel=4e-3)


def test_what_is_lost_is_carried_over() -> None:
    # At 1 the step of fp16 is 2^-10. Four times 2^-12: lost, lost (a tie), up, and 0 is owed.
    total, lost = half(1.0), half(0.0)
    seen = []
    for _ in range(4):
        total, lost = kahan_add(total, lost, half(2.0**-12))
        seen.append((total.item(), lost.item()))
    quarter = 2.0**-12
    assert seen == [
        (1.0, -quarter),
        (1.0, -2 * quarter),
        (1 + 4 * quarter, quarter),
        (1 + 4 * quarter, 0.0),
    ]


@pytest.mark.parametrize("wanted", [1.0, 1e4])
def test_a_target_network_that_stands_still(wanted: float) -> None:
    # 0.005 (1.0625 - 1) = 3.1e-4 is less than half a step at 1, 4.9e-4. Exactly, 0.995^3000 =
    # 2.9e-7 of the way would remain.
    online, tau = half(1.0625, -1.0625), 0.005
    naive = target = half(1.0, -1.0)
    scale = fitting_scale([target, online], 65504.0, wanted)
    scaled, lost = scale * target, torch.zeros_like(target)
    for _ in range(3000):
        naive = naive_soft_update(naive, online, tau)
        scaled, lost = kahan_soft_update(scaled, lost, online, tau, scale)
    assert naive.equal(half(1.0, -1.0))
    torch.testing.assert_close(scaled / scale, online, rtol=1e-3, atol=0)


def test_random_weights_that_follow_a_network() -> None:
    # Plain fp16 stops on the way, at 7% of the network's norm.
    generator = torch.Generator().manual_seed(0)
    online, naive = (torch.randn(1000, generator=generator).half() for _ in range(2))
    scaled, lost = naive, torch.zeros_like(naive)
    for _ in range(3000):
        naive = naive_soft_update(naive, online, 0.005)
        scaled, lost = kahan_soft_update(scaled, lost, online, 0.005, 1.0)

    def distance(found: Tensor) -> float:
        return float((found.float() - online.float()).norm() / online.float().norm())

    assert distance(naive) > 0.05 and distance(scaled) < 4e-5


def test_scaled_targets_fit() -> None:
    # 1e4 * 6.55 = 65,500 is fp16's end; half of it is left free, so 3.27 is the last.
    assert fitting_scale([half(3.0)], 65504.0) == 1e4
    # 32,752 / 6 = 5,458: the power of two below is 4,096.
    assert fitting_scale([half(1.0), half(-6.0)], 65504.0) == 4096
    assert fitting_scale([half(60_000.0)], 65504.0) == 1.0
    assert fitting_scale([half(0.0)], 65504.0) == 1e4


def test_in_float64_nothing_changes() -> None:
    rng = torch.Generator().manual_seed(0)
    online = torch.randn(100, dtype=torch.float64, generator=rng)
    naive = plain = torch.randn(100, dtype=torch.float64, generator=rng)
    scaled, lost, carried = 1e4 * naive, torch.zeros_like(naive), torch.zeros_like(naive)
    summed = plain
    for _ in range(100):
        naive = naive_soft_update(naive, online, 0.005)
        scaled, lost = kahan_soft_update(scaled, lost, online, 0.005, 1e4)
        step = 1e-3 * torch.randn(100, dtype=torch.float64, generator=rng)
        plain = plain + step
        summed, carried = kahan_add(summed, carried, step)
    torch.testing.assert_close(scaled / 1e4, naive, rtol=0, atol=1e-12)
    torch.testing.assert_close(summed, plain, rtol=0, atol=1e-12)
