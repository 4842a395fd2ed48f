"""Eq. 1, 2 and 3 with hand-computed numbers, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qpd.losses.distillation import (
    critic_huber,
    critic_huber_gradient,
    kl_student_teacher,
    kl_student_teacher_gradient,
    kl_teacher_student,
    kl_teacher_student_gradient,
    normalised_sum,
    normalised_sum_slopes,
)

torch.set_num_threads(1)

LN3 = math.log(3.0)
Divergence = Callable[..., Tensor]
DIVERGENCES = pytest.mark.parametrize("divergence", [kl_teacher_student, kl_student_teacher])


@pytest.mark.parametrize("temperature", [0.01, 1.0, 3.0])
def test_eq1_by_hand(temperature: float) -> None:
    # Teacher logits (tau ln 3, 0) / tau = (ln 3, 0) -> (3/4, 1/4). The student's (0, 0) is not
    # tempered -> (1/2, 1/2). KL = 3/4 ln(3/2) + 1/4 ln(1/2) = 0.304099 - 0.173287 = 0.130812.
    # Second state, the student's (2 ln 3, 0) -> (9/10, 1/10):
    # KL = 3/4 ln(5/6) + 1/4 ln(5/2) = -0.136741 + 0.229073 = 0.092332.
    teacher = torch.tensor([[temperature * LN3, 0.0]] * 2)
    student = torch.tensor([[0.0, 0.0], [2 * LN3, 0.0]])
    loss = kl_teacher_student(teacher, student, temperature)
    torch.testing.assert_close(loss, torch.tensor([0.130812, 0.092332]), rtol=0, atol=2e-6)


def test_eq1_with_a_tempered_student() -> None:
    # As the first state above, the student's logits divided by 3: (6 ln 3, 0) -> (2 ln 3, 0).
    teacher, student = torch.tensor([[3 * LN3, 0.0]]), torch.tensor([[6 * LN3, 0.0]])
    loss = kl_teacher_student(teacher, student, 3.0, student_temperature=3.0)
    torch.testing.assert_close(loss, torch.tensor([0.092332]), rtol=0, atol=2e-6)


def test_reverse_kl_by_hand() -> None:
    # KL(student || teacher) = 1/2 ln((1/2) / (3/4)) + 1/2 ln((1/2) / (1/4)) = 1/2 ln(4/3).
    loss = kl_student_teacher(torch.tensor([[3 * LN3, 0.0]]), torch.zeros(1, 2), 3.0)
    torch.testing.assert_close(loss, torch.tensor([0.5 * math.log(4 / 3)]))


def test_eq3_by_hand() -> None:
    # Huber with delta 1: 0.5^2 / 2 = 0.125; |3| - 1/2 = 2.5; at the seam 1/2; 0 at 0.
    teacher, student = torch.tensor([1.0, 3.0, -1.0, 4.0]), torch.tensor([0.5, 0.0, 0.0, 4.0])
    torch.testing.assert_close(critic_huber(teacher, student), torch.tensor([0.125, 2.5, 0.5, 0.0]))


@DIVERGENCES
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=18),
    temperature=st.floats(0.5, 5.0),
    shift=st.floats(-10, 10),
)
def test_identical_networks_have_no_loss(
    divergence: Divergence, logits: list[float], temperature: float, shift: float
) -> None:
    teacher = torch.tensor([logits], dtype=torch.float64)
    same = divergence(teacher, teacher + shift, temperature, temperature)
    assert same.abs().max() < 1e-12
    # Eq. 1 as written, student untempered: its optimum is the teacher's logits / tau.
    assert divergence(teacher, teacher / temperature + shift, temperature).abs().max() < 1e-12


@DIVERGENCES
def test_untempered_student_of_identical_logits_does_have_a_loss(divergence: Divergence) -> None:
    logits = torch.tensor([[3.0, 0.0]])
    assert divergence(logits, logits, 3.0) > 0.1


@DIVERGENCES
@given(st.integers(0, 2**31), st.floats(0.05, 5.0))
def test_kl_is_not_negative(divergence: Divergence, seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    teacher, student = torch.randn((2, 8, 5), generator=generator, dtype=torch.float64)
    assert (divergence(teacher, student, temperature) > 0).all()


@DIVERGENCES
@pytest.mark.parametrize(("temperature", "student_temperature"), [(3.0, 1.0), (0.5, 2.0)])
def test_kl_gradient_by_finite_differences(
    divergence: Divergence, temperature: float, student_temperature: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = torch.randn((2, 4, 3), generator=generator, dtype=torch.float64)
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: divergence(teacher, x, temperature, student_temperature), (student,)
    )


def test_forward_kl_gradient_by_hand() -> None:
    # d KL / d student logits = softmax(student) - softmax(teacher / tau), no factor tau^2:
    # (1/2, 1/2) - (3/4, 1/4).
    student = torch.zeros(1, 2, requires_grad=True)
    kl_teacher_student(torch.tensor([[3 * LN3, 0.0]]), student, 3.0).sum().backward()
    torch.testing.assert_close(student.grad, torch.tensor([[-0.25, 0.25]]))


def test_reverse_kl_gradient_by_hand() -> None:
    # p (log p - log q - KL): 1/2 (ln(2/3) - 1/2 ln(4/3)) = 1/4 ln(1/3), and its opposite.
    _, gradient = kl_student_teacher_gradient(torch.tensor([[3 * LN3, 0.0]]), torch.zeros(1, 2), 3)
    torch.testing.assert_close(gradient, torch.tensor([[-LN3 / 4, LN3 / 4]]))


@pytest.mark.parametrize(
    ("divergence", "gradient"),
    [
        (kl_teacher_student, kl_teacher_student_gradient),
        (kl_student_teacher, kl_student_teacher_gradient),
    ],
)
@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    temperature=st.floats(0.01, 5.0),
    student_temperature=st.floats(0.1, 5.0),
)
def test_kl_gradients_are_autograds(
    divergence: Divergence,
    gradient: Callable[..., tuple[Tensor, Tensor]],
    seed: int,
    temperature: float,
    student_temperature: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    teacher, student = 3 * torch.randn((2, 4, 5), generator=generator, dtype=torch.float64)
    student.requires_grad_()
    loss = divergence(teacher, student, temperature, student_temperature)
    (expected,) = torch.autograd.grad(loss.sum(), student)
    value, by_logits = gradient(teacher, student.detach(), temperature, student_temperature)
    assert torch.equal(value, loss)
    torch.testing.assert_close(by_logits, expected, rtol=1e-7, atol=1e-9)


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


@DIVERGENCES
def test_duplicating_the_batch_changes_nothing(divergence: Divergence) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, teacher = torch.randn((2, 6, 3), generator=generator, dtype=torch.float64)
    weight = torch.randn((3, 3), generator=generator, dtype=torch.float64, requires_grad=True)

    def mean_loss(copies: int) -> tuple[Tensor, Tensor]:
        student = inputs.repeat(copies, 1) @ weight
        rows = divergence(teacher.repeat(copies, 1), student, 2.0)
        assert rows.shape == (6 * copies,)
        values = critic_huber(teacher[:, 0].repeat(copies), student[:, 0])
        loss = normalised_sum(rows.mean(), values.mean(), 0.5)
        return loss, torch.autograd.grad(loss, weight)[0]

    for one, three in zip(mean_loss(1), mean_loss(3), strict=True):
        torch.testing.assert_close(one, three)


@DIVERGENCES
def test_shapes_must_agree(divergence: Divergence) -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(1, 3\)"):
        divergence(torch.zeros(2, 3), torch.zeros(1, 3), 1.0)
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
