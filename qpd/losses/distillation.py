"""The losses of policy distillation: Eq. 2 and 3 of the QPD paper.

Each loss returns one value per state, `[batch]`; the training step takes the mean, once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def critic_huber(teacher_values: Tensor, student_values: Tensor) -> Tensor:
    """Compute Huber(c_T - c_S), delta 1, per state (Eq. 3 of the QPD paper), all `[batch]`."""
    _same_shape(teacher_values, student_values)
    return F.huber_loss(student_values, teacher_values, reduction="none")


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


def normalised_sum_slope_tensors(
    actor_loss: Tensor, critic_loss: Tensor, actor_weight: float
) -> tuple[Tensor, ...]:
    """Return `normalised_sum_slopes` of losses that are scalar tensors, without reading them."""
    if actor_weight >= 1.0:
        return (torch.ones_like(actor_loss),)
    total = actor_loss + critic_loss
    weighted = ((actor_weight, actor_loss), (1.0 - actor_weight, critic_loss))
    return tuple((w * total / loss).where(loss > 1e-7, 0.0) for w, loss in weighted)


def _per_unit(loss: Tensor) -> Tensor:
    """Return loss / v(loss), or 1 outside the graph where the loss is too small to divide by."""
    value = loss.detach()
    known = value > 1e-7
    # Both wheres are needed: the gradient of a quotient by 0 is NaN even where it is not chosen.
    return (loss / torch.where(known, value, 1.0)).where(known, 1.0)


def _same_shape(teacher: Tensor, student: Tensor) -> None:
    if teacher.shape != student.shape:
        raise ValueError(
            f"teacher outputs {tuple(teacher.shape)} and student outputs "
            f"{tuple(student.shape)} differ in shape"
        )
