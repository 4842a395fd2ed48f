"""Eq. 1 for continuous actions: Gaussians before the squash, and actions without a distribution.

Ours, as the QPD paper has discrete actions alone. Means are in units of the action's range: -1 is
its lower bound and 1 its upper one, before the squash (a clip or a tanh) that keeps actions inside.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from qpd.actions.bernoulli import kl_bernoulli

Squash = Literal["clip", "tanh"]

# A deviation below one step of an 8-bit action says nothing that a device could do.
LEAST_DEVIATION = 2.0 / 255.0
# Where the squash has come within half such a step of the bound: beyond, all means are one action.
SATURATION: dict[Squash, float] = {"clip": 1.0, "tanh": math.atanh(1.0 - 1.0 / 255.0)}


def effective_error(teacher_means: Tensor, student_means: Tensor, squash: Squash) -> Tensor:
    """Return the student's error before the squash, `[batch, actions]`; 0 where both saturate.

    A teacher's mean beyond saturation counts as saturated, and a student's beyond it on the same
    side is no error: both take the action at the bound.
    """
    bound = SATURATION[squash]
    wanted = teacher_means.clamp(-bound, bound)
    error = student_means - wanted
    error = torch.where(wanted >= bound, error.clamp(max=0.0), error)
    return torch.where(wanted <= -bound, error.clamp(min=0.0), error)


def kl_gaussian(
    teacher_means: Tensor,
    log_deviations: Tensor,
    student_means: Tensor,
    temperature: float,
    squash: Squash,
) -> tuple[Tensor, Tensor]:
    """Compute KL(teacher || student) per state, in nats, and its derivative by the student's means.

    Both have the teacher's variance, widened by `temperature`: a student acts by its mean, and
    with one deviation of its own to learn it would be this one. The KL is then
    `error^2 / (2 temperature sigma^2)`, summed over actions, the same in both directions, and the
    same before the tanh as after it, which is a bijection. The error is `effective_error`'s. All
    inputs `[batch, actions]`; returns `[batch]` and `[batch, actions]`.
    """
    error = effective_error(teacher_means, student_means, squash)
    deviations = log_deviations.exp().clamp(min=LEAST_DEVIATION)
    slope = error / (temperature * deviations.square())
    return 0.5 * (slope * error).sum(-1), slope


def action_divergence(
    teacher_means: Tensor, student_means: Tensor, squash: Squash
) -> tuple[Tensor, Tensor]:
    """Compute how far two deterministic policies' actions are apart, and its derivative.

    For a clip half the squared error, an action's range being 2. For a tanh the divergence in nats
    of the actions as shares of their range, KL(Bernoulli(q) || Bernoulli(p)): twice the squared
    error p - q or more (Pinsker), equal to it near the middle, and its derivative, tanh(student) -
    tanh(teacher), does not vanish where the student has saturated at the wrong bound, as that of
    the squared error does. Means `[batch, actions]`; returns `[batch]` and `[batch, actions]`.
    """
    if squash == "clip":
        error = effective_error(teacher_means, student_means, squash)
        return 0.5 * error.square().sum(-1), error
    # The logit of (tanh(x) + 1) / 2 is 2 x.
    divergence = kl_bernoulli(2.0 * teacher_means, 2.0 * student_means)
    return divergence, torch.tanh(student_means) - torch.tanh(teacher_means)
