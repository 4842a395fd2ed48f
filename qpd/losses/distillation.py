"""The losses of policy distillation: Eq. 1, 2 and 3 of the QPD paper.

Each loss returns one value per state, `[batch]`; the training step takes the mean, once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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


def critic_huber(teacher_values: Tensor, student_values: Tensor) -> Tensor:
    """Compute Huber(c_T - c_S), delta 1, per state (Eq. 3 of the QPD paper), all `[batch]`."""
    _same_shape(teacher_values, student_values)
    return F.huber_loss(student_values, teacher_values, reduction="none")


def kl_teacher_student_gradient(
    teacher_logits: Tensor,
    student_logits: Tensor,
    temperature: float,
    student_temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Compute `kl_teacher_student` (Eq. 1) and its derivative by the student's logits, graph-free.

    Arguments and errors as there; returns `[batch]` and `[batch, num_actions]`, which is
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


def critic_huber_gradient(teacher_values: Tensor, student_values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `critic_huber` (Eq. 3) and its derivative by the student's values, `[batch]` both."""
    _same_shape(teacher_values, student_values)
    error = student_values - teacher_values
    slope = error.clamp(-1.0, 1.0)
    # (e - s/2) * s is e^2/2 where the slope is e, and |e| - 1/2 where it is +-1: no branch.
    return error.sub_(slope, alpha=0.5).mul_(slope), slope


def normalised_sum(actor_loss: Tensor, critic_loss: Tensor, actor_weight: float) -> Tensor:
    """Combine the losses by Eq. 2 of the QPD paper: `actor_weight` holds whatever their size.

    `L = (w * La / v(La) + (1 - w) * Lc / v(Lc)) * (v(La) + v(Lc))`, where v(x) is x outside the
    graph. The losses are scalars (batch means). The value of L is La + Lc (for w = 1, La). A loss
    below 1e-7, float32's resolution of a KL, has nothing left to teach: it contributes no gradient,
    instead of NaN or of noise blown up.
    """
    if actor_weight >= 1.0:
        return actor_loss
    total = (actor_loss + critic_loss).detach()
    weighted = actor_weight * _per_unit(actor_loss) + (1.0 - actor_weight) * _per_unit(critic_loss)
    # The bracket is 0 in value and carries the gradient alone, so L's value is exactly La + Lc.
    return total + (weighted - weighted.detach()) * total


def normalised_sum_slopes(
    actor_loss: float, critic_loss: float, actor_weight: float
) -> tuple[float, ...]:
    """Return the derivatives of `normalised_sum` (Eq. 2) by the two losses, given as numbers.

    `w * (La + Lc) / La` and `(1 - w) * (La + Lc) / Lc`, 0 for a loss below 1e-7; for w = 1 the
    actor's alone, 1.
    """
    if actor_weight >= 1.0:
        return (1.0,)
    total = actor_loss + critic_loss
    weighted = ((actor_weight, actor_loss), (1.0 - actor_weight, critic_loss))
    return tuple(w * total / loss if loss > 1e-7 else 0.0 for w, loss in weighted)


def _per_unit(loss: Tensor) -> Tensor:
    """Return loss / v(loss), or 1 outside the graph where the loss is too small to divide by."""
    value = loss.detach()
    known = value > 1e-7
    # Both wheres are needed: the gradient of a quotient by 0 is NaN even where it is not chosen.
    return (loss / torch.where(known, value, 1.0)).where(known, 1.0)


def _log_probabilities(
    teacher_logits: Tensor, student_logits: Tensor, temperature: float, student_temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the teacher's and the student's log-probabilities, each at its temperature."""
    _same_shape(teacher_logits, student_logits)
    return (
        torch.log_softmax(_per_temperature(teacher_logits, temperature), -1),
        torch.log_softmax(_per_temperature(student_logits, student_temperature), -1),
    )


def _per_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide logits, or derivatives by logits, by a temperature."""
    # Saves a copy of the batch's logits in Eq. 1's common case.
    return logits if temperature == 1.0 else logits / temperature


def _same_shape(teacher: Tensor, student: Tensor) -> None:
    if teacher.shape != student.shape:
        raise ValueError(
            f"teacher outputs {tuple(teacher.shape)} and student outputs "
            f"{tuple(student.shape)} differ in shape"
        )
