"""Eq. 1 of softmax policies with hand-computed numbers, and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qpd.actions.categorical import (
    kl_student_teacher,
    kl_student_teacher_gradient,
    kl_teacher_student,
    kl_teacher_student_gradient,
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
