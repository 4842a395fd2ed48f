"""Eq. 2 and 3 with hand-computed numbers, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.actions.categorical import kl_teacher_student
from qpd.losses.distillation import (
    critic_huber,
    critic_huber_gradient,
    normalised_sum,
    normalised_sum_slope_tensors,
    normalised_sum_slopes,
)

torch.set_num_threads(1)


def test_eq3_by_hand() -> None:
    # Huber with delta 1: 0.5^2 / 2 = 0.125; |3| - 1/2 = 2.5; at the seam 1/2; 0 at 0.
    teacher, student = torch.tensor([1.0, 3.0, -1.0, 4.0]), torch.tensor([0.5, 0.0, 0.0, 4.0])
    torch.testing.assert_close(critic_huber(teacher, student), torch.tensor([0.125, 2.5, 0.5, 0.0]))


def test_the_critics_gradient_is_autograds() -> None:
    teacher, student = torch.zeros(6), torch.tensor([-3.0, -1.0, -0.25, 0.0, 0.5, 7.0])
    student.requires_grad_()
    loss = critic_huber(teacher, student)
    (expected,) = torch.autograd.grad(loss.sum(), student)
    value, by_values = critic_huber_gradient(teacher, student.detach())
    torch.testing.assert_close(value, loss)
    assert torch.equal(by_values, expected)


def test_huber_gradient_by_finite_differences() -> None:
    teacher = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    student = torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: critic_huber(teacher, x), (student,))


def test_duplicating_the_batch_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, teacher = torch.randn((2, 6, 3), generator=generator, dtype=torch.float64)
    weight = torch.randn((3, 3), generator=generator, dtype=torch.float64, requires_grad=True)

    def mean_loss(copies: int) -> tuple[Tensor, Tensor]:
        student = inputs.repeat(copies, 1) @ weight
        rows = kl_teacher_student(teacher.repeat(copies, 1), student, 2.0)
        assert rows.shape == (6 * copies,)
        values = critic_huber(teacher[:, 0].repeat(copies), student[:, 0])
        loss = normalised_sum(rows.mean(), values.mean(), 0.5)
        return loss, torch.autograd.grad(loss, weight)[0]

    for one, three in zip(mean_loss(1), mean_loss(3), strict=True):
        torch.testing.assert_close(one, three)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        critic_huber(torch.zeros(2), torch.zeros(2, 1))


def test_eq2_by_hand() -> None:
    # La = 2x = 6, Lc = x^2 = 9 at x = 3, lambda = 1/4. Value: La + Lc = 15.
    # Gradient: (lambda La' / La + (1 - lambda) Lc' / Lc) * (La + Lc)
    #         = (1/4 * 2/6 + 3/4 * 6/9) * 15 = 1.25 + 7.5 = 8.75.
    x = torch.tensor(3.0, requires_grad=True)
    loss = normalised_sum(2 * x, x * x, 0.25)
    loss.backward()
    torch.testing.assert_close(loss.detach(), torch.tensor(0.25 * 15 + 0.75 * 15))
    torch.testing.assert_close(x.grad, torch.tensor(8.75))


@given(actor=st.floats(1e-3, 1e3), critic=st.floats(1e-3, 1e3), actor_weight=st.floats(0.0, 0.99))
def test_eq2_weighs_both_heads_as_lambda_says(
    actor: float, critic: float, actor_weight: float
) -> None:
    # With La = e^a and Lc = e^c, La' / La = 1: the gradients are lambda and 1 - lambda of the sum.
    logs = torch.tensor([actor, critic], dtype=torch.float64).log().requires_grad_()
    losses = logs.exp()
    loss = normalised_sum(losses[0], losses[1], actor_weight)
    loss.backward()
    total = actor + critic
    torch.testing.assert_close(loss.item(), total)
    expected = torch.tensor([actor_weight * total, (1 - actor_weight) * total], dtype=torch.float64)
    torch.testing.assert_close(logs.grad, expected)


def test_lambda_1_is_the_actor_alone() -> None:
    x = torch.tensor([3.0, 5.0], requires_grad=True)
    loss = normalised_sum(x[0] ** 2, x[1] ** 2, 1.0)
    loss.backward()
    assert loss.item() == 9.0
    assert torch.equal(x.grad, torch.tensor([6.0, 0.0]))


@pytest.mark.parametrize("actor_weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("actor", "critic"), [(0.0, 0.0), (0.0, 2.0), (2.0, 0.0)])
def test_a_loss_of_zero_gives_no_nan(actor: float, critic: float, actor_weight: float) -> None:
    # La = a x^2, Lc = c x^2 at x = 1: where a or c is 0, that loss and its gradient are 0.
    x = torch.tensor(1.0, requires_grad=True)
    loss = normalised_sum(actor * x * x, critic * x * x, actor_weight)
    loss.backward()
    assert math.isfinite(loss.item()) and math.isfinite(x.grad.item())


@pytest.mark.parametrize(("actor", "critic"), [(0.0, 2.0), (2.0, 0.0)])
def test_a_loss_of_zero_leaves_the_value_at_la_plus_lc(actor: float, critic: float) -> None:
    loss = normalised_sum(torch.tensor(actor), torch.tensor(critic), 0.5)
    assert loss.item() == 2.0


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_a_loss_rounded_to_zero_or_below_does_not_explode(sign: float) -> None:
    # Teacher and student agree so well that float32 rounds the KL to 0, or slightly below (seen:
    # -1e-9 on CartPole). Its gradient, some 1e-8, is rounding noise: multiplied by 1 / 1e-12 it
    # would swamp the critic's, which is (1 - lambda) * 1/1 * (0 + 1) = 0.5.
    noise, critic = torch.tensor([0.0, 1.0]).requires_grad_().unbind()
    noise.retain_grad()
    critic.retain_grad()
    loss = normalised_sum(1e-8 * noise + sign * 1e-9, critic, 0.5)
    loss.backward()
    assert 0.5 - 1e-6 <= loss.item() <= 1.0 + 1e-6
    assert critic.grad.item() == pytest.approx(0.5, abs=1e-6)
    assert abs(noise.grad.item()) < 0.1


@given(
    actor=st.sampled_from([0.0, 3e-8, 2e-7, 0.013, 1.4, 80.0]),
    critic=st.sampled_from([0.0, 3e-8, 2e-7, 0.013, 1.4, 80.0]),
    actor_weight=st.floats(0.0, 1.0),
)
def test_slopes_are_the_derivatives(actor: float, critic: float, actor_weight: float) -> None:
    losses = torch.tensor([actor, critic], dtype=torch.float64, requires_grad=True)
    normalised_sum(losses[0], losses[1], actor_weight).backward()
    assert losses.grad is not None
    slopes = normalised_sum_slopes(actor, critic, actor_weight)
    assert len(slopes) == (1 if actor_weight == 1.0 else 2)
    assert [*slopes, 0.0][:2] == pytest.approx(losses.grad.tolist(), rel=1e-9)


def test_slopes_by_hand() -> None:
    # w (La + Lc) / La = 0.25 * 4 / 1, (1 - w) (La + Lc) / Lc = 0.75 * 4 / 3
    assert normalised_sum_slopes(1.0, 3.0, 0.25) == (1.0, 1.0)
    assert normalised_sum_slopes(3.0, 1.0, 0.5) == pytest.approx((2 / 3, 2.0))
    assert all(math.isnan(slope) for slope in normalised_sum_slopes(1.0, math.nan, 0.5)[:1])


def test_slopes_of_tensors_by_hand() -> None:
    # w (La + Lc) / La = 0.25 * 4 / 1 and (1 - w) (La + Lc) / Lc = 0.75 * 4 / 3.
    found = normalised_sum_slope_tensors(torch.tensor(1.0), torch.tensor(3.0), 0.25)
    assert [float(each) for each in found] == pytest.approx([1.0, 1.0])
    # A loss below 1e-7 has nothing left to teach; 0.75 * (3 + 1e-8) / 3.
    found = normalised_sum_slope_tensors(torch.tensor(1e-8), torch.tensor(3.0), 0.25)
    assert [float(each) for each in found] == pytest.approx([0.0, 0.75])
    # One above it does: 0.5 * 1.0001 / 1e-4.
    found = normalised_sum_slope_tensors(torch.tensor(1e-4), torch.tensor(1.0), 0.5)
    assert [float(each) for each in found] == pytest.approx([5000.5, 0.50005], rel=1e-4)
    (alone,) = normalised_sum_slope_tensors(torch.tensor(2.0), torch.tensor(3.0), 1.0)
    assert float(alone) == 1.0
