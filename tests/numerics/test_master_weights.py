"""Master weights: updates that few bits lose add up in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qpd.numerics.float_format import FloatFormat
from qpd.numerics.loss_scale import unscale
from qpd.numerics.master_weights import MasterWeights


def master_of(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(weight.detach().float().clone())


def descend(masters: MasterWeights, master: nn.Parameter, weight: nn.Parameter, steps: int) -> None:
    """Descend along the constant gradient 2^-12, at learning rate 1."""
    optimizer = torch.optim.SGD([master], lr=1.0)
    for _ in range(steps):
        (-(2.0**-12) * weight.float()).sum().backward()
        assert unscale(masters.take_gradients(), 1.0)
        assert weight.grad is None
        optimizer.step()
        masters.write_back()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_lost_updates_add_up_in_the_master(dtype: torch.dtype) -> None:
    # At 1 fp16's step is 2^-10: 1 + 2^-12 is 1, however often it is added.
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    form = FloatFormat.parse("fp16")
    alone = torch.ones(1, dtype=torch.float16)
    for _ in range(4):
        alone += 2.0**-12
    assert alone.item() == 1.0
    master = master_of(weight)
    masters = MasterWeights([master], [weight], form)
    descend(masters, master, weight, 2)
    assert weight.item() == 1.0  # 1 + 2^-11, a tie, goes to the even 1
    assert master.item() == 1 + 2.0**-11
    descend(masters, master, weight, 1)
    assert weight.item() == 1 + 2.0**-10
    descend(masters, master, weight, 1)
    assert weight.item() == master.item() == 1 + 2.0**-10


def test_working_weights_begin_on_the_grid_and_masters_do_not() -> None:
    # e5m2 has four numbers in [1, 2): 1.1 becomes 1, 1.2 becomes 1.25.
    weight = nn.Parameter(torch.tensor([1.1, 1.2]))
    master = master_of(weight)
    MasterWeights([master], [weight], FloatFormat(5, 2))
    assert weight.tolist() == [1.0, 1.25]
    assert master.equal(torch.tensor([1.1, 1.2]))


def test_unscaling_leaves_the_working_gradient_alone() -> None:
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    own = [master_of(used), master_of(unused)]
    masters = MasterWeights(own, [used, unused], FloatFormat(5, 10))
    gradient = torch.tensor([8.0])
    used.grad = gradient
    taken = masters.take_gradients()
    assert unscale(taken, 8.0)
    assert (gradient.item(), taken[0].item()) == (8.0, 1.0)
    assert own[1].grad is None
