"""Both heads in one product: the same function, the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.students.heads import both_heads

torch.set_num_threads(1)

BATCH, WIDTH, ACTIONS = 7, 12, 5


def made(dtype: torch.dtype) -> tuple[Tensor, nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    hidden = torch.randn(BATCH, WIDTH).to(dtype).requires_grad_()
    return hidden, nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, 1)


def plain(hidden: Tensor, actor: nn.Linear, critic: nn.Linear) -> tuple[Tensor, Tensor]:
    """In float32, whatever the dtype of `hidden`."""
    hidden = hidden.float()
    values = F.linear(hidden, critic.weight, critic.bias).squeeze(-1)
    return F.linear(hidden, actor.weight, actor.bias), values


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_they_are_two_linear_layers(dtype: torch.dtype, rounding: float) -> None:
    hidden, actor, critic = made(dtype)
    of = [hidden, *actor.parameters(), *critic.parameters()]
    towards = [torch.randn(BATCH, ACTIONS), torch.randn(BATCH)]
    ours, theirs = both_heads(hidden, actor, critic), plain(hidden, actor, critic)
    assert ours[0].grad_fn is not None and "Heads" in ours[0].grad_fn.name()
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < rounding * other.norm()
    for one, other in zip(
        torch.autograd.grad(ours, of, towards),
        torch.autograd.grad(theirs, of, towards),
        strict=True,
    ):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert (one - other).norm() < rounding * other.norm()


@pytest.mark.parametrize("trained", ["actor", "critic"])
def test_a_head_without_a_loss_has_no_gradient(trained: str) -> None:
    hidden, actor, critic = made(torch.float32)
    position = ["actor", "critic"].index(trained)
    both_heads(hidden, actor, critic)[position].sum().backward()
    by_hidden = hidden.grad
    hidden.grad = None
    learns, rests = [(actor, critic), (critic, actor)][position]
    assert learns.weight.grad is not None and learns.bias.grad is not None
    assert rests.weight.grad is None and rests.bias.grad is None
    plain(hidden, actor, critic)[position].sum().backward()
    torch.testing.assert_close(by_hidden, hidden.grad)


def test_what_does_not_learn_is_computed_the_same() -> None:
    hidden, actor, critic = made(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours = both_heads(hidden, actor, critic)
        with torch.no_grad():
            theirs = both_heads(hidden, actor, critic)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_parameters_of_other_dtypes_take_the_ordinary_way() -> None:
    hidden, actor, critic = made(torch.float32)
    outputs = both_heads(hidden.double(), actor.double(), critic.double())
    assert outputs[0].grad_fn is not None and "Heads" not in outputs[0].grad_fn.name()


def test_a_compiled_step_takes_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    logits, _ = both_heads(*made(torch.float32))
    assert logits.grad_fn is not None and "Heads" not in logits.grad_fn.name()
