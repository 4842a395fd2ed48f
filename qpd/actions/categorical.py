"""Eq. 1 of the QPD paper for one choice among several: KL divergences of softmax policies.

Each returns one value per state, `[batch]`; the training step takes the mean, once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kl_teacher_student(
    teacher_logits: Tensor,
    student_logits: Tensor,
    temperature: float,
    student_temperature: float = 1.0,
) -> Tensor:
    """Compute KL(teacher || student) per state, in nats: Eq. 1 of the QPD paper (Rusu et al. 2016).

    The teacher's logits (Q-values for DQN) are divided by `temperature`: 0.01 sharpens Q-values,
    1 to 5 smooths an actor. The student's are divided by `student_temperature`, 1 in Eq. 1; give
    `temperature` there once it is folded into the student's head. There is no factor tau^2.
    Both inputs float `[batch, num_actions]`; returns `[batch]`.
    """
    teacher, student = _log_probabilities(
        teacher_logits, student_logits, temperature, student_temperature
    )
    # log_softmax, not log(softmax): where a sharp teacher (tau 0.01) has a p of 0 in float32, that
    # would be -inf, and 0 * -inf is NaN.
    return (teacher.exp() * (teacher - student)).sum(-1)


def kl_student_teacher(
    teacher_logits: Tensor,
    student_logits: Tensor,
    temperature: float,
    student_temperature: float = 1.0,
) -> Tensor:
    """Compute KL(student || teacher) per state, in nats: mode-seeking, beyond the paper.

    Arguments as `kl_teacher_student`; returns `[batch]`.
    """
    teacher, student = _log_probabilities(
        teacher_logits, student_logits, temperature, student_temperature
    )
    return (student.exp() * (student - teacher)).sum(-1)


def kl_teacher_student_gradient(
    teacher_logits: Tensor,
    student_logits: Tensor,
    temperature: float,
    student_temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute `kl_teacher_student` (Eq. 1) and its derivative by the student's logits, graph-free.

    Arguments as there; returns `[batch]` and `[batch, num_actions]`, which is
    `(p_S - p_T) / student_temperature`. Call it under `torch.no_grad()`: it works in place.
    """
    teacher, student = _log_probabilities(
        teacher_logits, student_logits, temperature, student_temperature
    )
    # Kept: the derivative needs it, too.
    likely = teacher.exp()
    divergence = (likely * (teacher - student)).sum(-1)
    return divergence, _per_temperature(student.exp_().sub_(likely), student_temperature)


def kl_student_teacher_gradient(
    teacher_logits: Tensor,
    student_logits: Tensor,
    temperature: float,
    student_temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute `kl_student_teacher` and its derivative by the student's logits, graph-free.

    As `kl_teacher_student_gradient`; the derivative is
    `p_S * (log p_S - log p_T - KL) / student_temperature`.
    """
    teacher, student = _log_probabilities(
        teacher_logits, student_logits, temperature, student_temperature
    )
    likely, excess = student.exp(), student - teacher
    divergence = (likely * excess).sum(-1)
    gradient = excess.sub_(divergence[:, None]).mul_(likely)
    return divergence, _per_temperature(gradient, student_temperature)


def _log_probabilities(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float, student_temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the teacher's and the student's log-probabilities, each at its temperature."""
    return (
        torch.log_softmax(_per_temperature(teacher_logits, temperature), -1),
        torch.log_softmax(_per_temperature(student_logits, student_temperature), -1),
    )


def _per_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits, or derivatives by logits, by a temperature."""
    # Saves a copy of the batch's logits in Eq. 1's common case.
    return logits if temperature == 1.0 else logits / temperature
